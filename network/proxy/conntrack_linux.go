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

// The kernel evaluates the tables for a flow's first packet, and treats later packets like it. TCP connections end with
// their endpoint. A UDP client, however, may continue to send to an endpoint that is gone, or to a cluster IP without
// endpoints at its start. The proxy deletes such flows, so that the next packet counts as a first one.

// destination is the original destination of a UDP flow: an address, or any of the Nodes' for a node port.
type destination struct {
	address netip.Addr // zero for a node port
	port    uint16
}

// flows are the valid endpoints of flows, in order, by destination.
type flows map[destination][]netip.AddrPort

// udpFlows returns the flows of a Service's ports.
func (c *compiler) udpFlows(ports []servicePort, ends []backends) flows {
	var all flows
	for i, p := range ports {
		if protocols[p.protocol] != udp {
			continue
		}
		if all == nil {
			all = flows{}
		}
		valid := append(slices.Clip(ends[i].cluster), ends[i].local...)
		for _, a := range slices.Concat([]netip.Addr{p.address}, p.externals, p.balancers, c.standIns(&p)) {
			all[destination{a, p.port}] = valid
		}
		if p.nodePort != 0 {
			all[destination{port: p.nodePort}] = valid
		}
	}
	return all
}

// deleteFlows deletes the flows to destinations with changed endpoints, unless they go to a current endpoint.
func (b *ruleset) deleteFlows(f family) (deleted int, err error) {
	filter := &flowFilter{changed: b.staleFlows[f], allowed: map[destination]map[netip.AddrPort]bool{},
		nodes: b.nodeIPs}
	for name := range b.udp {
		for target, ends := range b.services[name].udp[f] {
			if _, changed := b.staleFlows[f][target]; !changed {
				continue
			}
			if filter.allowed[target] == nil {
				filter.allowed[target] = map[netip.AddrPort]bool{}
			}
			for _, e := range ends {
				filter.allowed[target][e] = true
			}
		}
	}
	h, err := conntrack(b.namespace)
	if err != nil {
		return 0, fmt.Errorf("open conntrack of %s: %w", f, err)
	}
	defer h.Close()
	n, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(f.tableFamily()), filter)
	if err != nil && !errors.Is(err, unix.ENOENT) { // skip one that ended by itself
		return int(n), fmt.Errorf("delete UDP flows of %s: %w", f, err)
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

// flowFilter is a netlink.CustomConntrackFilter.
type flowFilter struct {
	changed flows
	allowed map[destination]map[netip.AddrPort]bool
	nodes   []netip.Addr
}

// MatchConntrackFlow reports whether to delete a flow. A flow to an address that no Service has anymore is deleted only
// if it was translated: other flows never belonged to a Service.
func (s *flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != udp {
		return false
	}
	sent, ok := addressPort(flow.Forward.DstIP, flow.Forward.DstPort)
	end, valid := addressPort(flow.Reverse.SrcIP, flow.Reverse.SrcPort)
	if !ok || !valid {
		return false
	}
	target := destination{sent.Addr(), sent.Port()}
	if _, changed := s.changed[target]; !changed {
		target.address = netip.Addr{}
		if _, changed := s.changed[target]; !changed || !slices.Contains(s.nodes, sent.Addr()) {
			return false
		}
	}
	allowed, isService := s.allowed[target]
	return !allowed[end] && (isService || end != sent)
}

func addressPort(ip []byte, port uint16) (netip.AddrPort, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port), ok
}
