package node

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// The pod network from which the agent chooses where nobody else gives the nodes their CIDRs: 10.128.0.0/9,
// which leaves 10.96.0.0/12 to Services. Node N begins to look at 10.244.0.0 + N subnets, so that
// clusters look as people know them.
var (
	podNetwork     = netip.MustParsePrefix("10.128.0.0/9")
	firstPodSubnet = netip.MustParseAddr("10.244.0.0")
)

// cidrs chooses pod CIDRs that do not overlap with those of any Node it has seen. Two processes that do not
// see each other's nodes, or register them at the same moment, can still choose the same one; a cluster with
// several agents lets its node controller assign them.
type cidrs struct {
	bits int // of the subnets

	mu    sync.Mutex
	taken map[int]string // the subnet of that number, by which node
}

// newCIDRs makes subnets large enough for pods addresses: /24 for the kubelet's 110, /22 for a thousand.
func newCIDRs(pods int) *cidrs {
	bits := 24
	for bits > podNetwork.Bits() && 1<<(32-bits)-2 < pods {
		bits--
	}
	return &cidrs{bits: bits, taken: map[int]string{}}
}

// note marks what a node has.
func (c *cidrs) note(node, cidr string) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil || !prefix.Overlaps(podNetwork) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.number(prefix.Masked().Addr())
	for i := range max(1, 1<<max(0, c.bits-prefix.Bits())) {
		c.taken[first+i] = node
	}
}

// avoid keeps away from what addresses of this machine take, as those of the Nodes of another agent here. A
// network that is larger than a part of the pod network counts for nothing: it would leave no subnet.
func (c *cidrs) avoid(machine []net.Addr) {
	const largest = 12
	for _, a := range machine {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Bits() >= largest {
			c.note("this machine", prefix.String())
		}
	}
}

// choose takes a free subnet for a node.
func (c *cidrs) choose(node string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := 1 << (c.bits - podNetwork.Bits())
	start := c.number(firstPodSubnet) + ordinal(node)%count
	for i := range count {
		n := (start + i) % count
		if owner, taken := c.taken[n]; !taken || owner == node {
			c.taken[n] = node
			return netip.PrefixFrom(offset(podNetwork.Addr(), uint32(n)<<(32-c.bits)), c.bits).String(), nil
		}
	}
	return "", fmt.Errorf("no subnet of %v is left for node %s", podNetwork, node)
}

func (c *cidrs) number(a netip.Addr) int {
	return int((asUint(a) - asUint(podNetwork.Addr())) >> (32 - c.bits))
}

// ordinal is the number at the end of a node's name, counted from a hash of what is before it: agents that cannot
// see each other's Nodes have other names for theirs. "node-" is 0.
func ordinal(node string) int {
	prefix, first := node, 0
	if at := strings.LastIndexByte(node, '-') + 1; at > 0 {
		if n, err := strconv.ParseUint(node[at:], 10, 20); err == nil {
			prefix, first = node[:at], int(n)
		}
	}
	if prefix == "node-" {
		return first
	}
	h := fnv.New32a()
	h.Write([]byte(prefix)) //nolint:errcheck // a hash does not fail
	return first + int(h.Sum32()>>8)
}

func asUint(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func offset(a netip.Addr, by uint32) netip.Addr {
	n := asUint(a) + by
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

var errNoCIDR = errors.New("the node has no pod CIDR yet")

// addresses gives the pods of one node their IPs. It is safe for concurrent use.
type addresses struct {
	mu     sync.Mutex
	prefix netip.Prefix // zero until the node has one
	next   uint32       // where to look first: an address rests as long as possible before it is used again
	byPod  map[types.UID]netip.Addr
	taken  map[netip.Addr]types.UID
}

// setCIDR says where addresses come from, as soon as that is known. It keeps to the first.
func (a *addresses) setCIDR(cidr string) {
	prefix, err := netip.ParsePrefix(cidr)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil || !prefix.Addr().Is4() || a.prefix.IsValid() {
		return
	}
	a.prefix = prefix.Masked()
	a.byPod = map[types.UID]netip.Addr{}
	a.taken = map[netip.Addr]types.UID{}
}

// subnet is where the node's addresses come from; the zero Prefix while that is not known.
func (a *addresses) subnet() netip.Prefix {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.prefix
}

// takeAddress gives a pod an address. The first of the subnet names the network and the second, by
// custom, the gateway; the last is the broadcast address.
func (a *addresses) takeAddress(pod types.UID) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.prefix.IsValid() {
		return "", errNoCIDR
	}
	if ip, ok := a.byPod[pod]; ok {
		return ip.String(), nil
	}
	const reserved = 3
	size := uint32(1)<<(32-a.prefix.Bits()) - reserved
	for range size {
		ip := offset(a.prefix.Addr(), 2+a.next%size)
		a.next++
		if _, taken := a.taken[ip]; !taken {
			a.taken[ip], a.byPod[pod] = pod, ip
			return ip.String(), nil
		}
	}
	return "", fmt.Errorf("no address of %v is free", a.prefix)
}

// reserveAddress marks the address that a pod has from before.
func (a *addresses) reserveAddress(pod types.UID, address string) {
	ip, err := netip.ParseAddr(address)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil || !a.prefix.Contains(ip) {
		return
	}
	a.taken[ip], a.byPod[pod] = pod, ip
	a.next = max(a.next, asUint(ip)-asUint(a.prefix.Addr())-1)
}

func (a *addresses) releaseAddress(pod types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ip, ok := a.byPod[pod]; ok {
		delete(a.byPod, pod)
		delete(a.taken, ip)
	}
}
