// Package network holds the tests of the cluster's network. They start the shipped binary on three machines, which are
// network namespaces on one segment, and use the network like programs in pods and on machines:
//
//	walkthrough_test.go   scenarios of tutorials: Deployments, StatefulSets, canaries, node ports, policies
//	ingress_test.go       two hosts and TLS
//	kills_test.go         agents, proxies and DNS are killed, and a machine dies
//	services_test.go      the conformance suite's tests of Services, each by its codename
//	dns_test.go           conformance tests of DNS
//	nodedns_test.go       each node's DNS server, without the API server and without other nodes
//	pods_test.go          conformance tests of pods' networks, host ports and the guestbook
//	containerd_test.go    containers of the real containerd, by coxswain cni
//	cri_test.go           sandboxes of its Container Runtime Interface, as kubelets start them
//	throughput_test.go    benchmarks with iperf3
//	netexec               the program in the pods
//
// They are built with the tag e2e, by `make e2e`, which also lists missing programs when tests are skipped.
package network
