package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The kernel looks a flow's first packet up in the tables, and treats all that follow like it. TCP connections end when
// their endpoint does, but a UDP client may go on to send to an endpoint that is gone, or to a cluster IP that had none
// when it began. Such flows are deleted, so that the next packet is a first one.

// destination is where a UDP flow was sent: an address, or for a node port any of the Nodes'.
type destination struct {
	address netip.Addr // zero for a node port
	port    uint16
}

// flows are the endpoints, in order, that flows to destinations may have.
type flows map[destination][]netip.AddrPort

// udpFlows are those of a Service's ports.
func (c *compiler) udpFlows(ports []servicePort, of []backends) flows {
	var all flows
	for i, p := range ports {
		if protocols[p.protocol] != udp {
			continue
		}
		if all == nil {
			all = flows{}
		}
		ends := append(slices.Clip(of[i].cluster), of[i].local...)
		for _, a := range slices.Concat([]netip.Addr{p.address}, p.externals, p.balancers, c.standIns(&p)) {
			all[destination{a, p.port}] = ends
		}
		if p.nodePort != 0 {
			all[destination{port: p.nodePort}] = ends
		}
	}
	return all
}

// deleteFlows deletes the flows to destinations whose endpoints changed, unless they have one of the present ones.
func (b *rulebook) deleteFlows(f family) (deleted int, err error) {
	filter := &staleFlows{changed: b.stale[f], allowed: map[destination]map[netip.AddrPort]bool{}, nodes: b.nodeIPs}
	for name := range b.udp {
		for to, ends := range b.services[name].udp[f] {
			if _, changed := b.stale[f][to]; !changed {
				continue
			}
			if filter.allowed[to] == nil {
				filter.allowed[to] = map[netip.AddrPort]bool{}
			}
			for _, e := range ends {
				filter.allowed[to][e] = true
			}
		}
	}
	h, err := conntrack(b.namespace)
	if err != nil {
		return 0, fmt.Errorf("UDP flows of %s: %w", f, err)
	}
	defer h.Close()
	n, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(f.tableFamily()), filter)
	if err != nil && !errors.Is(err, unix.ENOENT) { // one that ended by itself meanwhile
		return int(n), fmt.Errorf("UDP flows of %s: %w", f, err)
	}
	return int(n), nil
}

func conntrack(namespace *os.File) (*netlink.Handle, error) {
	if namespace == nil {
		return netlink.NewHandle(unix.NETLINK_NETFILTER)
	}
	raw, err := namespace.SyscallConn()
	if err != nil {
		return nil, err
	}
	var h *netlink.Handle
	problem := raw.Control(func(fd uintptr) {
		h, err = netlink.NewHandleAt(netns.NsHandle(fd), unix.NETLINK_NETFILTER)
	})
	return h, errors.Join(problem, err)
}

// staleFlows is a netlink.CustomConntrackFilter.
type staleFlows struct {
	changed flows
	allowed map[destination]map[netip.AddrPort]bool
	nodes   []netip.Addr
}

// MatchConntrackFlow reports whether to delete a flow. One to an address that is no Service's any more is deleted
// only if it was translated: the others are not of Services.
func (s *staleFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != udp {
		return false
	}
	sent, ok := addressPort(flow.Forward.DstIP, flow.Forward.DstPort)
	end, valid := addressPort(flow.Reverse.SrcIP, flow.Reverse.SrcPort)
	if !ok || !valid {
		return false
	}
	to := destination{sent.Addr(), sent.Port()}
	if _, changed := s.changed[to]; !changed {
		to.address = netip.Addr{}
		if _, changed := s.changed[to]; !changed || !slices.Contains(s.nodes, sent.Addr()) {
			return false
		}
	}
	allowed, isService := s.allowed[to]
	return !allowed[end] && (isService || end != sent)
}

func addressPort(ip []byte, port uint16) (netip.AddrPort, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port), ok
}
