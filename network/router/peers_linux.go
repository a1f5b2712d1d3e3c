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

// How routers of several machines reach each other.
const (
	// VXLAN has packets travel in UDP between the machines (RFC 7348), whatever lies between these.
	VXLAN = "vxlan"
	// Routes has the machines pass packets on as they are, which takes a network segment that they share. Each machine
	// forwards what comes for its pods.
	Routes = "routes"
)

const (
	// VXLANPort is the UDP port of VXLAN: Linux' own, as flannel has it; 4789 may be Docker's.
	VXLANPort = 8472

	vxlanDevice  = "vxlan"
	vxlanNetwork = 1 // VNI

	// protocol marks our routes (rt_protos of iproute2), so that those of peers that have gone are found.
	protocol = 197
)

// peers is how this router reaches others; mode is empty while it reaches none.
type peers struct {
	mode   string
	local  netip.Addr
	ranges []netip.Prefix // the peers' subnets and own addresses
}

// JoinPeers prepares for peers. The address is this machine's, by which peers reach it.
func (r *Router) JoinPeers(mode string, address netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch mode {
	case VXLAN:
		if err := r.openVXLAN(address); err != nil {
			return fmt.Errorf("vxlan: %w", err)
		}
	case Routes:
		if err := r.forwardOnMachine(address); err != nil {
			return fmt.Errorf("forwarding between machines: %w", err)
		}
	default:
		return fmt.Errorf("unknown network mode %q", mode)
	}
	r.peers = peers{mode: mode, local: address}
	return nil
}

// MTU is that of the pods of routers that reach each other in this way, where the machine has this address, in bytes.
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

// overhead is what VXLAN adds to a packet, in bytes: Ethernet, VXLAN, UDP and IP.
func overhead(address netip.Addr) int {
	if address.Is4() {
		return 14 + 8 + 8 + 20
	}
	return 14 + 8 + 8 + 40
}

// deviceOf is the machine's device that has an address.
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

// openVXLAN makes the device among the machine's, whose network carries the packets, and moves it to the router, where
// they are. One that is there already is taken if it is as it should be.
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
		return fmt.Errorf("device: %w", err)
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
		return fmt.Errorf("name in the router: %w", err)
	}
	if err := set(r.namespace, inside, map[setting]uint32{forwarding: 1, rpFilter: strict}); err != nil {
		return err
	}
	return r.inside.LinkSetUp(inside)
}

// hardwareAddress is that of the VXLAN device of a machine: every other machine knows it by its address.
func hardwareAddress(machine netip.Addr) net.HardwareAddr {
	sum := sha256.Sum256([]byte("vxlan of " + machine.String()))
	const local, multicast = 0x02, 0x01 // administered locally, of one device
	sum[0] = sum[0]&^multicast | local
	return sum[:6]
}

// forwardOnMachine has the machine forward between its own network and the router.
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

// SetPeers routes to the peers' subnets, and forgets peers that are not among these. JoinPeers comes first. One peer
// that cannot be reached does not keep others from it. Addresses of Services that are a peer's are no longer served.
func (r *Router) SetPeers(all []Peer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ranges []netip.Prefix
	for _, p := range all {
		ranges = append(append(ranges, p.Subnets...), netip.PrefixFrom(p.Address, p.Address.BitLen()))
	}
	var again error
	if !slices.Equal(ranges, r.peers.ranges) {
		r.peers.ranges = ranges
		_, again = r.serveAddresses()
	}
	switch r.peers.mode {
	case VXLAN:
		return errors.Join(r.routeByVXLAN(all), again)
	case Routes:
		return errors.Join(r.routeByMachine(all), again)
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
			problems = append(problems, fmt.Errorf("machine %s: %w", p.Address, err))
			continue
		}
		for _, s := range p.Subnets {
			if err := r.inside.NeighSet(neighbor(device, family(s.Addr()), s.Addr(), mac)); err != nil {
				problems = append(problems, fmt.Errorf("router of %s: %w", s, err))
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

// forget removes entries of a device's table of neighbors that are not to be kept.
func (r *Router) forget(device netlink.Link, family int, keep func(netlink.Neigh) bool) error {
	known, err := r.inside.NeighList(device.Attrs().Index, family)
	if err != nil {
		return fmt.Errorf("neighbors: %w", err)
	}
	for _, n := range known {
		if n.State&netlink.NUD_PERMANENT == 0 || keep(n) {
			continue
		}
		n.Family = family
		if err := r.inside.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("neighbor %s: %w", n.IP, err)
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

// replaceRoutes makes routes by destination, and removes those of ours that are not among them.
func replaceRoutes(h *netlink.Handle, want map[string]*netlink.Route) error {
	var problems []error
	for to, route := range want {
		if route == nil {
			continue
		}
		route.Protocol = protocol
		if err := h.RouteReplace(route); err != nil {
			problems = append(problems, fmt.Errorf("route to %s: %w", to, err))
		}
	}
	ours := &netlink.Route{Protocol: protocol}
	known, err := h.RouteListFiltered(netlink.FAMILY_ALL, ours, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	for i := range known {
		if want[known[i].Dst.String()] != nil {
			continue
		}
		if err := h.RouteDel(&known[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			problems = append(problems, fmt.Errorf("old route to %s: %w", known[i].Dst, err))
		}
	}
	return errors.Join(problems...)
}
