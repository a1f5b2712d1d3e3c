// Package routing syncs the routes of this machine's router from the API: to pods on other machines' Nodes, by
// Node.spec.podCIDRs, and from this machine to Services, by ServiceCIDRs.
//
//	routing_linux.go  informers, and the loop that applies them
//	peers_linux.go    Nodes as peers, and conflicts about subnets
//
// It is a client of the API, with the right to list and watch Nodes and ServiceCIDRs, like system:node-proxier.
package routing
