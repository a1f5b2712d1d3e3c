package router

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Peer is another machine with the subnets of its Nodes.
type Peer struct {
	Address netip.Addr // by which this machine reaches it
	Subnets []netip.Prefix
}

// The modes in which routers of several machines reach each other.
const (
	// VXLAN encapsulates packets in UDP between the machines (RFC 7348), over any network.
	VXLAN = "vxlan"
	// Routes makes the machines route packets directly, which requires a shared network segment. Each machine forwards
	// packets to its pods.
	Routes = "routes"
)

const (
	// VXLANPort is the UDP port of VXLAN. It is Linux' default, as with flannel; Docker may use 4789.
	VXLANPort = 8472

	vxlanDevice  = "vxlan"
	vxlanNetwork = 1 // VNI

	// protocol marks our routes (rt_protos of iproute2), so that routes of former peers can be found.
	protocol = 197
)

// peers is the state of other routers. mode is empty before JoinPeers.
type peers struct {
	mode   string
	local  netip.Addr
	ranges []netip.Prefix // the peers' subnets and own addresses
}

// JoinPeers prepares for peers. address is this machine's, by which peers reach it.
func (r *Router) JoinPeers(mode string, address netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch mode {
	case VXLAN:
		if err := r.openVXLAN(address); err != nil {
			return fmt.Errorf("open vxlan: %w", err)
		}
	case Routes:
		if err := r.forwardOnMachine(address); err != nil {
			return fmt.Errorf("enable forwarding between machines: %w", err)
		}
	default:
		return fmt.Errorf("unknown network mode %q", mode)
	}
	r.peers = peers{mode: mode, local: address}
	return nil
}

// MTU returns the MTU of pods, in bytes, for a mode and the machine's address.
func MTU(mode string, address netip.Addr) (int, error) {
	machine, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, fmt.Errorf("netlink: %w", err)
	}
	defer machine.Close()
	device, err := deviceOf(machine, address)
	if err != nil {
		return 0, err
	}
	if mode == VXLAN {
		return device.Attrs().MTU - overhead(address), nil
	}
	return device.Attrs().MTU, nil
}

// overhead returns the bytes that VXLAN adds to a packet: Ethernet, VXLAN, UDP and IP.
func overhead(address netip.Addr) int {
	if address.Is4() {
		return 14 + 8 + 8 + 20
	}
	return 14 + 8 + 8 + 40
}

// deviceOf returns the machine's device with an address.
func deviceOf(machine *netlink.Handle, address netip.Addr) (netlink.Link, error) {
	devices, err := machine.LinkList()
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		own, err := machine.AddrList(d, family(address))
		if err != nil {
			return nil, err
		}
		for _, a := range own {
			if a.IP.Equal(address.AsSlice()) {
				return d, nil
			}
		}
	}
	return nil, fmt.Errorf("no device of this machine has the address %s", address)
}

// openVXLAN creates the device in the machine's namespace, whose network carries the packets, and moves it to the
// router, where it delivers them. It reuses an existing device with the right settings.
func (r *Router) openVXLAN(address netip.Addr) error {
	under, err := deviceOf(r.machine, address)
	if err != nil {
		return err
	}
	if err := guardUnderlay(under.Attrs().Name, address); err != nil {
		return err
	}
	want := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: vxlanDevice, MTU: under.Attrs().MTU - overhead(address),
			HardwareAddr: hardwareAddress(address)},
		VxlanId: vxlanNetwork, VtepDevIndex: under.Attrs().Index, SrcAddr: address.AsSlice(), Port: VXLANPort,
		UDP6ZeroCSumRx: address.Is6(), UDP6ZeroCSumTx: address.Is6(),
	}
	if old, err := find(r.inside, vxlanDevice); err != nil {
		return err
	} else if v, ok := old.(*netlink.Vxlan); ok && v.SrcAddr.Equal(want.SrcAddr) && v.MTU == want.MTU &&
		v.VtepDevIndex == want.VtepDevIndex {
		return nil
	}
	if err := remove(r.inside, vxlanDevice); err != nil {
		return err
	}
	want.Name = "coxvx" + hardwareAddress(address).String()[9:11] // until it is in the router
	if err := remove(r.machine, want.Name); err != nil {
		return err
	}
	if err := r.machine.LinkAdd(want); err != nil {
		return fmt.Errorf("create device: %w", err)
	}
	if err := r.move(want); err != nil {
		return errors.Join(err, r.machine.LinkDel(want))
	}
	return nil
}

func (r *Router) move(device *netlink.Vxlan) error {
	raw, err := r.namespace.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) { err = r.machine.LinkSetNsFd(device, int(fd)) }); failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("move to the router: %w", err)
	}
	inside, err := r.inside.LinkByName(device.Name)
	if err != nil {
		return err
	}
	if err := r.inside.LinkSetName(inside, vxlanDevice); err != nil {
		return fmt.Errorf("rename device in the router: %w", err)
	}
	if err := set(r.namespace, inside, map[setting]uint32{forwarding: 1, rpFilter: strict}); err != nil {
		return err
	}
	return r.inside.LinkSetUp(inside)
}

// hardwareAddress derives the MAC address of a machine's VXLAN device from the machine's address, so that every other
// machine can compute it.
func hardwareAddress(machine netip.Addr) net.HardwareAddr {
	sum := sha256.Sum256([]byte("vxlan of " + machine.String()))
	const local, multicast = 0x02, 0x01 // administered locally, unicast
	sum[0] = sum[0]&^multicast | local
	return sum[:6]
}

// forwardOnMachine makes the machine forward between its own network and the router.
func (r *Router) forwardOnMachine(address netip.Addr) error {
	under, err := deviceOf(r.machine, address)
	if err != nil {
		return err
	}
	devices := []string{under.Attrs().Name}
	for device, subnets := range r.devices {
		devices = append(devices, device)
		for _, s := range subnets {
			if err := errors.Join(guardSubnet(s), acceptForwarded(s.Addr())); err != nil {
				return err
			}
		}
	}
	for _, name := range devices {
		device, err := r.machine.LinkByName(name)
		if err != nil {
			return err
		}
		if err := set(nil, device, map[setting]uint32{forwarding: 1}); err != nil {
			return err
		}
	}
	return nil
}

// SetPeers routes to the peers' subnets, and forgets all other peers. JoinPeers must come first. An unreachable peer
// does not affect the others. Addresses of Services that belong to a peer are no longer served.
func (r *Router) SetPeers(all []Peer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ranges []netip.Prefix
	for _, p := range all {
		ranges = append(append(ranges, p.Subnets...), netip.PrefixFrom(p.Address, p.Address.BitLen()))
	}
	var served error
	if !slices.Equal(ranges, r.peers.ranges) {
		r.peers.ranges = ranges
		_, served = r.serveAddresses()
	}
	switch r.peers.mode {
	case VXLAN:
		return errors.Join(r.routeByVXLAN(all), served)
	case Routes:
		return errors.Join(r.routeByMachine(all), served)
	}
	return errors.New("this router has not joined others")
}

func (r *Router) routeByVXLAN(all []Peer) error {
	device, err := r.inside.LinkByName(vxlanDevice)
	if err != nil {
		return err
	}
	var problems []error
	routes, onMachine := map[string]*netlink.Route{}, map[string]*netlink.Route{}
	machines, neighbors := map[string]bool{}, map[string]bool{} // by hardware address, by subnet
	for _, p := range all {
		mac := hardwareAddress(p.Address)
		machines[mac.String()] = true
		entry := neighbor(device, unix.AF_BRIDGE, p.Address, mac)
		entry.Flags, entry.State = netlink.NTF_SELF, netlink.NUD_PERMANENT
		if err := r.inside.NeighSet(entry); err != nil {
			problems = append(problems, fmt.Errorf("add machine %s: %w", p.Address, err))
			continue
		}
		for _, s := range p.Subnets {
			if err := r.inside.NeighSet(neighbor(device, family(s.Addr()), s.Addr(), mac)); err != nil {
				problems = append(problems, fmt.Errorf("add router of %s: %w", s, err))
				continue
			}
			neighbors[s.Addr().String()] = true
			routes[s.String()] = via(device, ipNet(s), s.Addr())
			if onMachine[s.String()], err = r.toRouter(s); err != nil {
				problems = append(problems, err)
			}
		}
	}
	problems = append(problems, replaceRoutes(r.inside, routes), replaceRoutes(r.machine, onMachine),
		admitPeers(r.peers.local, all))
	problems = append(problems, r.forget(device, unix.AF_BRIDGE, func(n netlink.Neigh) bool {
		return machines[n.HardwareAddr.String()]
	}))
	for _, f := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		problems = append(problems, r.forget(device, f, func(n netlink.Neigh) bool { return neighbors[n.IP.String()] }))
	}
	return errors.Join(problems...)
}

func neighbor(device netlink.Link, family int, address netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: device.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT,
		IP: address.AsSlice(), HardwareAddr: mac}
}

// forget removes permanent entries of a device's neighbor table, except the ones that keep selects.
func (r *Router) forget(device netlink.Link, family int, keep func(netlink.Neigh) bool) error {
	neighbors, err := r.inside.NeighList(device.Attrs().Index, family)
	if err != nil {
		return fmt.Errorf("list neighbors: %w", err)
	}
	for _, n := range neighbors {
		if n.State&netlink.NUD_PERMANENT == 0 || keep(n) {
			continue
		}
		n.Family = family
		if err := r.inside.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete neighbor %s: %w", n.IP, err)
		}
	}
	return nil
}

func (r *Router) routeByMachine(all []Peer) error {
	if err := r.forwardOnMachine(r.peers.local); err != nil {
		return err
	}
	under, err := deviceOf(r.machine, r.peers.local)
	if err != nil {
		return err
	}
	routes := map[string]*netlink.Route{}
	for _, p := range all {
		for _, s := range p.Subnets {
			routes[s.String()] = &netlink.Route{LinkIndex: under.Attrs().Index, Dst: ipNet(s), Gw: p.Address.AsSlice(),
				Family: family(s.Addr())}
		}
	}
	return replaceRoutes(r.machine, routes)
}

// replaceRoutes sets our routes by destination, and removes all other ones of ours.
func replaceRoutes(h *netlink.Handle, want map[string]*netlink.Route) error {
	var problems []error
	for destination, route := range want {
		if route == nil {
			continue
		}
		route.Protocol = protocol
		if err := h.RouteReplace(route); err != nil {
			problems = append(problems, fmt.Errorf("add route to %s: %w", destination, err))
		}
	}
	ours := &netlink.Route{Protocol: protocol}
	routes, err := h.RouteListFiltered(netlink.FAMILY_ALL, ours, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for i := range routes {
		if want[routes[i].Dst.String()] != nil {
			continue
		}
		if err := h.RouteDel(&routes[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			problems = append(problems, fmt.Errorf("delete old route to %s: %w", routes[i].Dst, err))
		}
	}
	return errors.Join(problems...)
}
