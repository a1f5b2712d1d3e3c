package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// standIns is a range of addresses that the machine routes to this router: the stand-ins for addresses of Services.
// Each half of a range is for one kind of stand-ins.
type standIns struct {
	subnet netip.Prefix // of the cable that it is routed through
	netip.Prefix
}

// standInRanges returns the ranges that routers choose from; each takes the first that is free on its machine. An IPv4
// range has room for the cluster IPs of a /8 range: it consists of two networks of that size that are reserved for
// future use (RFC 1112), but routed by Linux like all others. An IPv6 range has room for a /64, in a network of our own
// (RFC 4193).
func standInRanges(like netip.Addr) (all []netip.Prefix) {
	for i := range byte(7) {
		if like.Is4() {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{240 + 2*i}), 7))
			continue
		}
		first := netip.MustParseAddr("fd63:6f78:7377::").As16()
		first[7] = 2 * i
		all = append(all, netip.PrefixFrom(netip.AddrFrom16(first), 63))
	}
	return all
}

// StandIns returns the ranges of this router's stand-ins, one for each IP family of the Nodes' subnets. From then on
// the machine routes them to the router. They are removed with the Node's cable.
func (r *Router) StandIns() (ranges []netip.Prefix, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, os.ErrClosed
	}
	for _, like := range []netip.Addr{gateway4, gateway6} {
		s, err := r.reserve(like)
		if errors.Is(err, errNoSubnet) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reserve stand-ins: %w", err)
		}
		r.standIns[like.Is4()] = s
		ranges = append(ranges, s.Prefix)
	}
	return ranges, nil
}

// reserve returns the range that is routed through one of the cables. If there is none, it adds a route for the first
// free range. The kernel rejects a second route to a range.
func (r *Router) reserve(like netip.Addr) (standIns, error) {
	routes, err := r.machine.RouteList(nil, family(like))
	if err != nil {
		return standIns{}, err
	}
	if s, ok := r.reserved(like, routes); ok {
		return s, r.refuse(s)
	}
	for _, one := range standInRanges(like) {
		if routed(routes, one) || free([]netip.Prefix{one}) != nil {
			continue
		}
		route, err := r.toRouter(one)
		if err != nil {
			return standIns{}, err
		}
		err = r.machine.RouteAdd(route)
		if errors.Is(err, unix.EEXIST) {
			continue // another router was faster
		}
		if err != nil {
			return standIns{}, fmt.Errorf("add the machine's route to %s: %w", one, err)
		}
		s, _ := r.reserved(like, []netlink.Route{*route})
		return s, r.refuse(s)
	}
	return standIns{}, fmt.Errorf("the machine routes all ranges for them elsewhere, such as %s",
		standInRanges(like)[0])
}

// reserved returns the range that the machine's routes lead through one of the cables.
func (r *Router) reserved(like netip.Addr, routes []netlink.Route) (standIns, bool) {
	for _, device := range slices.Sorted(maps.Keys(r.devices)) {
		cable, err := r.machine.LinkByName(device)
		if err != nil {
			continue
		}
		for _, s := range r.devices[device] {
			for _, one := range standInRanges(like) {
				if s.Addr().Is4() == like.Is4() && slices.ContainsFunc(routes, func(route netlink.Route) bool {
					return route.LinkIndex == cable.Attrs().Index && destination(route) == one
				}) {
					return standIns{s, one}, true
				}
			}
		}
	}
	return standIns{}, false
}

// refuse makes unused stand-ins unreachable in the router, so that it does not send their packets back to the machine.
func (r *Router) refuse(s standIns) error {
	unreachable := &netlink.Route{Dst: ipNet(s.Prefix), Type: unix.RTN_UNREACHABLE, Family: family(s.Addr())}
	if err := r.inside.RouteReplace(unreachable); err != nil {
		return fmt.Errorf("add route to %s: %w", s.Prefix, err)
	}
	return nil
}

// routed reports whether there are routes to a range, except the default route.
func routed(routes []netlink.Route, target netip.Prefix) bool {
	return slices.ContainsFunc(routes, func(r netlink.Route) bool {
		d := destination(r)
		return d.Bits() > 0 && d.Overlaps(target)
	})
}

// destination returns a route's destination, or the zero Prefix for a default route.
func destination(r netlink.Route) netip.Prefix {
	if r.Dst == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	if len(r.Dst.Mask) == 4 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, ones)
}

// ServeAddresses redirects connections to addresses of Services to the router. By protocol number, the argument has the
// stand-in for each address and port, in the ranges of StandIns. Earlier addresses and ports that are not in it are no
// longer served. Clients keep their addresses; the machine's own packets come from its end of the cable.
//
// refused lists addresses that the machine needs: addresses that lead to loopback, a link, pods, Services or peers, and
// ports of its own addresses with a current listener. Host ports and node ports also take precedence over addresses of
// Services, and so do all other translations on the machine. Packets from the router are not translated again.
//
// While there is an address, it uses a map and three chains in the table "coxswain" of the machine's packet filter, and
// enables forwarding. They stay when the process ends, because connections do.
func (r *Router) ServeAddresses(all map[uint8]map[netip.AddrPort]netip.Addr) (refused []netip.AddrPort, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.addresses = all; all == nil {
		r.addresses = map[uint8]map[netip.AddrPort]netip.Addr{}
	}
	return r.serveAddresses()
}

func (r *Router) serveAddresses() (refused []netip.AddrPort, err error) {
	if r.closed {
		return nil, os.ErrClosed // Close has removed the map and chains
	}
	if r.addresses == nil {
		return nil, nil // keep those of an earlier process
	}
	broadcasts, err := r.broadcasts()
	if err != nil {
		return nil, fmt.Errorf("list broadcast addresses: %w", err)
	}
	var problems []error
	for _, like := range []netip.Addr{gateway4, gateway6} {
		targets := map[string]string{}
		for protocol, addresses := range r.addresses {
			for target, standIn := range addresses {
				switch {
				case target.Addr().Is4() != like.Is4():
				case slices.ContainsFunc(r.balancers, func(p netip.Prefix) bool { return p.Contains(target.Addr()) }):
					// The machine's packets reach the router without a stand-in.
				case broadcasts[target.Addr()] || !r.mayServe(target.Addr()) || listens(protocol, target):
					refused = append(refused, target)
				default:
					key := nft.Concat(nft.Address(target.Addr()), nft.Protocol(protocol), nft.Port(target.Port()))
					targets[string(key)] = string(nft.Address(standIn))
				}
			}
		}
		problems = append(problems, r.serveAddressesLike(like, targets))
	}
	return refused, errors.Join(problems...)
}

func (r *Router) serveAddressesLike(like netip.Addr, targets map[string]string) error {
	s, ok := r.standIns[like.Is4()]
	if !ok || len(targets) == 0 {
		return r.leaveAddresses(like)
	}
	if err := forwardFor(s.subnet); err != nil {
		return err
	}
	t, err := r.addressTable(s)
	if err == nil {
		err = t.replace(targets)
	}
	if err != nil {
		return fmt.Errorf("serve addresses of Services: %w", err)
	}
	return nil
}

// broadcasts returns the broadcast addresses of the machine's networks.
func (r *Router) broadcasts() (map[netip.Addr]bool, error) {
	routes, err := r.machine.RouteListFiltered(netlink.FAMILY_V4,
		&netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_BROADCAST},
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
	all := map[netip.Addr]bool{}
	for _, route := range routes {
		all[destination(route).Addr()] = true
	}
	return all, err
}

// mayServe reports whether an address may belong to a Service. Addresses that are routed to the router already belong
// to other Services and pods.
func (r *Router) mayServe(a netip.Addr) bool {
	if a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.Is4In6() {
		return false
	}
	if a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240) { // "this network", and reserved ones with broadcasts
		return false
	}
	routed := slices.Concat(r.services, r.peers.ranges)
	for _, subnets := range r.devices {
		routed = append(routed, subnets...)
	}
	for _, s := range r.standIns {
		routed = append(routed, s.Prefix)
	}
	return !slices.ContainsFunc(routed, func(p netip.Prefix) bool { return p.Contains(a) })
}

// listens reports whether a port of an address of the machine is in use. Other addresses cannot be bound to.
func listens(protocol uint8, target netip.AddrPort) bool {
	kind := unix.SOCK_STREAM
	switch protocol {
	case unix.IPPROTO_UDP:
		kind = unix.SOCK_DGRAM
	case unix.IPPROTO_SCTP:
		if _, err := os.Stat("/proc/thread-self/net/sctp"); err != nil {
			return false // no SCTP listener can exist, and a socket would load the kernel module
		}
	}
	domain, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(target.Port()),
		Addr: target.Addr().As16()})
	if target.Addr().Is4() {
		domain, address = unix.AF_INET, &unix.SockaddrInet4{Port: int(target.Port()), Addr: target.Addr().As4()}
	}
	socket, err := unix.Socket(domain, kind|unix.SOCK_CLOEXEC, int(protocol))
	if err != nil {
		return true // unknown
	}
	defer func() { _ = unix.Close(socket) }()
	if protocol != unix.IPPROTO_UDP { // ended connections do not count as listeners
		_ = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	err = unix.Bind(socket, address)
	return err != nil && !errors.Is(err, unix.EADDRNOTAVAIL)
}

// addressesPrefix begins the names of the map and chains for addresses of Services. Each router has its own.
const addressesPrefix = "service-addresses-"

// afterOthers is the priority of the chains that translate destinations. It is after the machine's own translations,
// host ports and node ports.
const afterOthers = -99

// leaveAddresses deletes the map and chains of a family.
func (r *Router) leaveAddresses(like netip.Addr) error {
	own := map[string]bool{}
	for _, subnets := range r.devices {
		for _, s := range subnets {
			own[chainOf(s)] = true
		}
	}
	return deleteNamed(like, func(name string) bool {
		return strings.HasPrefix(name, addressesPrefix) && own[subnetOf(name)]
	})
}

// addressTable is the map of addresses of Services, with its chains.
type addressTable struct {
	standIns
	device    string // of the cable
	table     *nftables.Table
	addresses *nftables.Set
}

func (r *Router) addressTable(s standIns) (*addressTable, error) {
	t := &addressTable{standIns: s, table: &nftables.Table{Name: tableName, Family: tableFamily(s.Addr())}}
	address := nftables.TypeIPAddr
	if s.Addr().Is6() {
		address = nftables.TypeIP6Addr
	}
	t.addresses = &nftables.Set{Table: t.table, Name: addressesPrefix + chainOf(s.subnet), ID: 1, IsMap: true,
		Concatenation: true, DataType: address,
		KeyType: nftables.MustConcatSetType(address, nftables.TypeInetProto, nftables.TypeInetService)}
	for device, subnets := range r.devices {
		if slices.Contains(subnets, s.subnet) {
			t.device = device
			return t, nil
		}
	}
	return nil, errNoSubnet
}

// replace writes the chains, and the map with its elements, in one transaction. It then ends UDP flows to changed
// addresses.
func (t *addressTable) replace(targets map[string]string) error {
	changed := map[string]string{}
	err := nft.Once(nil, func(tx *nft.Transaction) error {
		var removed, added []nftables.SetElement
		if _, err := tx.GetSetByName(t.table, t.addresses.Name); err == nil {
			found, err := tx.GetSetElements(t.addresses)
			if err != nil {
				return err
			}
			for _, e := range found {
				if value, stays := targets[string(e.Key)]; stays && value == string(e.Val) {
					delete(targets, string(e.Key))
					continue
				}
				removed = append(removed, nftables.SetElement{Key: e.Key, Val: e.Val})
				changed[string(e.Key)] = ""
			}
		}
		for key, value := range targets {
			added = append(added, nftables.SetElement{Key: []byte(key), Val: []byte(value)})
			changed[key] = value
		}
		tx.AddTable(t.table)
		tx.AddSet(t.addresses, nil)
		t.addChains(tx)
		tx.DeleteElements(t.addresses, removed)
		tx.AddElements(t.addresses, added)
		return tx.Commit()
	})
	if err != nil {
		return err
	}
	return t.endFlows(changed)
}

// addChains creates a chain for packets that arrive at the machine, one for packets that it sends, and one for the
// source of the latter:
//
//	iifname != "cox0" dnat ip to ip daddr . meta l4proto . th dport map @service-addresses-pods-10.1.0.0
//
//	oifname "cox0" ip daddr 240.0.0.0/7 fib saddr type local snat to 10.1.0.1
func (t *addressTable) addChains(tx *nft.Transaction) {
	add := func(name string, hook *nftables.ChainHook, priority nftables.ChainPriority, rule []expr.Any) {
		chain := tx.AddChain(&nftables.Chain{Name: addressesPrefix + name + chainOf(t.subnet), Table: t.table,
			Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityRef(priority)})
		tx.FlushChain(chain)
		tx.AddRule(&nftables.Rule{Table: t.table, Chain: chain, Exprs: rule})
	}
	add("", nftables.ChainHookPrerouting, afterOthers,
		append(notThrough(expr.MetaKeyIIFNAME, t.device+"\x00"), t.toStandIn()...))
	add("output-", nftables.ChainHookOutput, afterOthers, t.toStandIn())
	add("sources-", nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource, t.fromMachine())
}

func (t *addressTable) toStandIn() []expr.Any {
	destination := destinationOf(t.Addr())
	destination.DestRegister = firstWord
	next := firstWord + destination.Len/4
	return []expr.Any{destination,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		&expr.Payload{DestRegister: next + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: firstWord, DestRegister: firstWord, IsDestRegSet: true, SetName: t.addresses.Name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(t.table.Family), RegAddrMin: firstWord},
	}
}

// fromMachine sets the machine's source address to the one that it also uses for cluster IPs, which policies of pods
// allow.
func (t *addressTable) fromMachine() []expr.Any {
	rule := append(through(expr.MetaKeyOIFNAME, t.device+"\x00"), in(destinationOf(t.Addr()), t.Prefix)...)
	return append(rule,
		&expr.Fib{Register: unix.NFT_REG_1, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1,
			Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
		&expr.Immediate{Register: unix.NFT_REG_1, Data: t.subnet.Addr().Next().AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(t.table.Family), RegAddrMin: unix.NFT_REG_1})
}

// endFlows ends UDP flows to changed addresses, by their keys. The kernel would otherwise translate later packets like
// the flow's first one.
func (t *addressTable) endFlows(changed map[string]string) error {
	filter := &redirected{addresses: map[netip.AddrPort]netip.Addr{}, standIns: t.Prefix}
	size := len(t.Addr().AsSlice())
	for key, value := range changed {
		if key[size] != unix.IPPROTO_UDP {
			continue
		}
		a, _ := netip.AddrFromSlice([]byte(key[:size]))
		standIn, _ := netip.AddrFromSlice([]byte(value)) // the zero Addr for an address that is no longer served
		filter.addresses[netip.AddrPortFrom(a, binary.BigEndian.Uint16([]byte(key[size+4:])))] = standIn
	}
	if len(filter.addresses) == 0 {
		return nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open conntrack: %w", err)
	}
	defer h.Close()
	_, err = h.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(family(t.Addr())), filter)
	if err != nil && !errors.Is(err, unix.ENOENT) { // skip one that ended by itself
		return fmt.Errorf("delete UDP flows: %w", err)
	}
	return nil
}

// redirected is a netlink.CustomConntrackFilter for flows that no longer go to the right stand-in.
type redirected struct {
	addresses map[netip.AddrPort]netip.Addr // with their stand-ins
	standIns  netip.Prefix
}

// MatchConntrackFlow reports whether to delete a flow.
func (r *redirected) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	sent, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	end, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	sent, end = sent.Unmap(), end.Unmap()
	standIn, changed := r.addresses[netip.AddrPortFrom(sent, flow.Forward.DstPort)]
	if !changed || flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	if standIn.IsValid() {
		return end != standIn
	}
	return r.standIns.Contains(end)
}
