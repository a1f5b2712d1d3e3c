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

// podNetwork is the range of the pod CIDRs that the agent chooses, unless the cluster assigns them:
// 10.128.0.0/9, which leaves 10.96.0.0/12 to Services. The search for node N starts N subnets after firstPodSubnet, so
// that clusters have the addresses that users are used to.
var (
	podNetwork     = netip.MustParsePrefix("10.128.0.0/9")
	firstPodSubnet = netip.MustParseAddr("10.244.0.0")
)

// cidrs chooses pod CIDRs that do not overlap with those of any Node it has observed. Two agents that do not see each
// other's Nodes, or register them at the same moment, can still choose the same one; in a cluster with several agents
// the node controller should assign CIDRs.
type cidrs struct {
	bits int // prefix length of the subnets

	mu    sync.Mutex
	taken map[int]string // the owner of each taken subnet, by the subnet's number; guarded by mu
}

// newCIDRs returns cidrs with subnets that are large enough for the given number of pods: /24 for the kubelet's 110,
// /22 for a thousand.
func newCIDRs(pods int) *cidrs {
	bits := 24
	for bits > podNetwork.Bits() && 1<<(32-bits)-2 < pods {
		bits--
	}
	return &cidrs{bits: bits, taken: map[int]string{}}
}

// note marks a node's CIDR as taken.
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

// avoid marks the networks of this machine's addresses as taken, such as those of another agent's Nodes. It ignores
// networks with a prefix shorter than /12, which would leave no subnet.
func (c *cidrs) avoid(machine []net.Addr) {
	const largest = 12
	for _, a := range machine {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Bits() >= largest {
			c.note("this machine", prefix.String())
		}
	}
}

// choose reserves a free subnet for a node and returns it.
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

// ordinal returns the number at the end of a node's name. It adds a hash of the name before the number, so that agents
// that do not see each other's Nodes, and name them differently, start at different subnets. The hash of "node-"
// is 0.
func ordinal(node string) int {
	prefix, first := node, 0
	if digits := strings.LastIndexByte(node, '-') + 1; digits > 0 {
		if n, err := strconv.ParseUint(node[digits:], 10, 20); err == nil {
			prefix, first = node[:digits], int(n)
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

func offset(a netip.Addr, distance uint32) netip.Addr {
	n := asUint(a) + distance
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

var errNoCIDR = errors.New("the node has no pod CIDR yet")

// addresses assigns IPs to the pods of one node. It is safe for concurrent use.
type addresses struct {
	mu     sync.Mutex   // guards the fields below
	prefix netip.Prefix // zero until the node has a CIDR
	next   uint32       // offset of the next candidate: an address is reused as late as possible
	byPod  map[types.UID]netip.Addr
	taken  map[netip.Addr]types.UID
}

// setCIDR sets the range of addresses. Only the first valid call has an effect.
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

// subnet returns the range of the node's addresses; the zero Prefix until it is known.
func (a *addresses) subnet() netip.Prefix {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.prefix
}

// takeAddress assigns an address to a pod. Three addresses are never assigned: the first of the subnet names the
// network, the second is the gateway by convention, and the last is the broadcast address.
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

// reserveAddress marks the address that a pod already has as taken.
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
