// Package routing keeps the routes of this machine's router as the API has them: to the pods of other machines' Nodes,
// by Node.spec.podCIDRs, and from this machine to Services, by ServiceCIDRs.
//
//	routing_linux.go  informers, and the loop that applies them
//	peers_linux.go    Nodes as peers: whose word counts where two claim a subnet
//
// It is a client of the API, with the right to list and watch Nodes and ServiceCIDRs, as system:node-proxier has it.
package routing
