package proxy

import (
	"net/netip"
	"time"
)

// tableName is the name of kube-proxy's tables. A namespace can have only one owner of them.
const tableName = "kube-proxy"

// layout is an empty chain that marks the layout of a table. A table without it is recreated.
const layout = "layout-1"

// set is one of the sets and maps of every table.
type set uint8

const (
	serviceIPs          set = iota // address . protocol . port : the chain that chooses an endpoint
	serviceNodePorts               // protocol . port : the same
	endpoints                      // address . protocol . port . number : address . port of an endpoint
	noEndpointServices             // address . protocol . port : reject or drop
	noEndpointNodePorts            // protocol . port : the same
	clusterIPs                     // addresses of Services
	nodePortIPs                    // addresses of the Nodes
	hairpins                       // address . address: endpoints as their own clients
	firewallIPs                    // address . protocol . port : the chain that lets some sources pass
	sets
)

// element is an element of a set. Its key is in the kernel's encoding.
type element struct {
	set set
	key string
}

// chain is the content of a chain outside the fixed layout. It is comparable, so that a chain is rewritten only if it
// changed.
type chain struct {
	kind     kind
	count    int           // number of endpoints to choose from
	local    bool          // for policy Local
	address  netip.Addr    // of the Service, with protocol and port; if invalid, the packet's
	protocol uint8         //
	port     uint16        //
	affinity string        // the map of session affinity, or ""
	timeout  time.Duration // of the affinity's elements
	cluster  string        // the chain for policy Cluster
	near     string        // the chain for policy Local; "" without local endpoints
	sources  string        // the set of allowed sources
	machine  string        // the set of the machine's own sources, or ""
	pods     string        // the set of sources that are pods of our Nodes, or ""
}

// shared reports whether several Services may use a chain: it works for any destination.
func (c *chain) shared() bool { return c.kind == choosing && !c.address.IsValid() }

// kind is the function of a chain.
type kind uint8

const (
	choosing kind = iota // chooses an endpoint
	outside              // receives packets to external addresses
	firewall             // drops packets to a load balancer's address from disallowed sources
)

// verdictReject and verdictDrop are values of verdict maps; all other values are names of chains.
const (
	verdictReject = "reject-chain"
	verdictDrop   = "drop"
)

// base returns the first number of the endpoints of a policy.
func base(local bool) uint32 {
	if local {
		return maxEndpoints
	}
	return 0
}
