package proxy

import (
	"net/netip"
	"time"
)

// tableName is that of kube-proxy's tables, of which a namespace can have only one owner.
const tableName = "kube-proxy"

// layout is an empty chain that marks a table as one of this layout. A table without it is made anew.
const layout = "layout-1"

// set is one of the sets and maps that every table has.
type set uint8

const (
	serviceIPs          set = iota // address . protocol . port : the chain that chooses an endpoint
	serviceNodePorts               // protocol . port : the same
	endpoints                      // a port of a Service . number : address . port of an endpoint
	noEndpointServices             // address . protocol . port : reject or drop
	noEndpointNodePorts            // protocol . port : the same
	clusterIPs                     // addresses of Services
	nodePortIPs                    // addresses of the Nodes
	hairpins                       // address . address: endpoints as their own clients
	firewallIPs                    // address . protocol . port : the chain that lets some sources pass
	sets
)

// element is one of a set; its key is as the kernel has it.
type element struct {
	of  set
	key string
}

// chain is the content of a chain that a table has besides those of its layout. It is comparable, so that a chain is
// written again only if it changed.
type chain struct {
	kind     kind
	count    int           // of the endpoints to choose from
	local    bool          // of policy Local
	address  netip.Addr    // of the Service, with protocol and port; where there is none, the packet's
	protocol uint8         //
	port     uint16        //
	affinity string        // the map that remembers clients; "" if none does
	timeout  time.Duration // of its elements
	cluster  string        // the chain that chooses for policy Cluster
	near     string        // the chain that chooses for policy Local; "" if there is nothing to choose from
	sources  string        // the set of sources that may pass
	machine  string        // the set of sources that are the machine's own; "" for none
	pods     string        // the set of sources that are pods of our Nodes; "" for none
}

// shared reports whether several Services may use a chain: it serves whichever the packet's destination is.
func (c *chain) shared() bool { return c.kind == choosing && !c.address.IsValid() }

// kind is what a chain does.
type kind uint8

const (
	choosing kind = iota // chooses an endpoint
	outside              // receives packets to external addresses
	firewall             // drops packets to a load balancer's address from other sources than are allowed
)

// verdictReject and verdictDrop are values of verdict maps; others are names of chains.
const (
	verdictReject = "reject-chain"
	verdictDrop   = "drop"
)

// base is where the numbers of endpoints begin, by the policy they are chosen for.
func base(local bool) uint32 {
	if local {
		return maxEndpoints
	}
	return 0
}
