// Package router implements the network of the pods of a machine: a network namespace that routes between them, the
// machine and other machines. It is separate from the machine's own namespace, so that neither the machine's packet
// filter nor its forwarding applies:
//
//	pod eth0 ───┐
//	pod eth0 ───┤            ┌── cox… ── machine: 10.244.0.1, routes to the subnet and to Services
//	            ├── router ──┤
//	pod eth0 ───┤            └── vxlan ─ routers of other machines
//	pod eth0 ───┘
//
// Every packet of a pod is routed here, even to its neighbours: pods have addresses of 32 bits (128 in IPv6), and send
// all packets to the router. Rules in this namespace therefore see all traffic. A pod can send from its own addresses
// only. The first address of a Node's subnet is the router's, the second the machine's.
//
// The namespace lives as long as a process has it open. When the last such process ends, the kernel deletes its
// devices, with the machine's addresses and routes. So no devices are left over, however the processes end.
//
//	router_linux.go      the namespace
//	machine_linux.go     a Node's cable to the machine, and the machine's routes
//	pod_linux.go         a pod's cable
//	peers_linux.go       other machines: by VXLAN, or by routes
//	masquerade_linux.go  pods reach what the machine reaches
//	returns_linux.go     replies take the same way back
//	nodeports_linux.go   node ports at the machine's addresses
//	addresses_linux.go   external addresses of Services at the machine
//	hostports_linux.go   ports of the machine that forward to a pod
//	filter_linux.go      rules in the machine's packet filter
//	device_linux.go      the kernel's settings of a device
//	guard_linux.go       rules against forged sources, and VXLAN from pods
//	forward_linux.go     accepts pods' packets in the machine's other packet filters
//	underlay_linux.go    accepts VXLAN from peers only
//	remove_linux.go      removes all traces from the machine
//
// The package does not depend on Kubernetes.
package router
