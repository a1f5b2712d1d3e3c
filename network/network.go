// Package network is the cluster's network on Linux: addresses of Services that answer, names, policies, and pods
// that reach each other across nodes. Each part is a room of its own, a client of the API like everything above the
// API server, and usable without the others:
//
//	router/   the namespace that routes for the pods of a machine; routing/ keeps its routes as the API has them
//	cni/      the same network for containers of other runtimes, as a plugin of theirs
//	proxy/    Services' addresses, node ports and affinity, as kube-proxy has them
//	policy/   NetworkPolicies
//	dns/      names of Services and pods, by the Kubernetes DNS specification
//	ingress/  HTTP and TLS from outside, by Ingresses
//	nft/      nftables by netlink: transactions, and sets of any size
//	netns/    network namespaces
//
// Parts that program the kernel are given a network namespace to do so, as a file; nil is that of the process.
package network
