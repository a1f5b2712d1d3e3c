// Package router is the network of the pods of a machine: a network namespace that routes between them, the machine
// and other machines, apart from the machine's own namespace, so that neither the machine's packet filter nor its
// forwarding has a say:
//
//	pod eth0 ───┐
//	pod eth0 ───┤            ┌── cox… ── machine: 10.244.0.1, routes to the subnet and to Services
//	            ├── router ──┤
//	pod eth0 ───┤            └── vxlan ─ routers of other machines
//	pod eth0 ───┘
//
// Every packet of a pod is routed here, also to its neighbours: pods have addresses of 32 bits (of 128 in IPv6), and
// send everything to the router. Rules in this namespace therefore see all there is. A pod can send from its own
// address only. Of a Node's subnet, the first address is the router's, the second the machine's.
//
// The namespace lives as long as something has it open: when the last process that does ends, its devices go, with
// the machine's addresses and routes. Nothing is left, however the processes end.
//
//	router_linux.go      the namespace
//	machine_linux.go     a Node's cable to the machine, and the machine's routes
//	pod_linux.go         a pod's cable
//	peers_linux.go       other machines: by VXLAN, or by routes
//	masquerade_linux.go  pods reach what the machine reaches
//	returns_linux.go     answers to the machine come back the way they went
//	nodeports_linux.go   the machine answers at node ports
//	addresses_linux.go   the machine answers at addresses of Services
//	hostports_linux.go   ports of the machine lead to single pods
//	filter_linux.go      rules in the machine's packet filter
//	device_linux.go      what the kernel keeps for each device
//	guard_linux.go       pods send from their own addresses, and no VXLAN
//	forward_linux.go     the machine's other packet filters let pods' packets through
//	underlay_linux.go    the machine takes VXLAN from its peers only
//	remove_linux.go      nothing is left on the machine
//
// The package knows nothing of Kubernetes.
package router
