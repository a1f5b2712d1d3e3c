// Package network implements the cluster's network on Linux: Service addresses, DNS names, network policies, and pods
// that reach each other across nodes. Each part is a package of its own and a client of the API, like everything above
// the API server, and works without the others:
//
//	router/   the network namespace that routes for the pods of a machine; routing/ syncs its routes from the API
//	cni/      the same network for containers of other runtimes, as a CNI plugin
//	proxy/    Service addresses, node ports and session affinity, as in kube-proxy
//	policy/   NetworkPolicies in nftables
//	dns/      names of Services and pods, by the Kubernetes DNS specification
//	ingress/  HTTP and TLS from outside the cluster, by Ingresses
//	nft/      nftables over netlink: transactions, and sets of any size
//	netns/    network namespaces
//
// Parts that program the kernel take the network namespace to work in as an open file; nil is the namespace of the
// process.
package network
