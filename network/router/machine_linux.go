package router

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/netns"
)

// AddNode adds a Node with its subnets: it creates a cable between the router and the machine, on which no other host
// can interfere. Both ends have the same name, which begins with "cox", has at most 15 bytes, and must be unique on the
// machine. AddNode is idempotent.
func (r *Router) AddNode(device string, subnets ...netip.Prefix) error {
	for i, s := range subnets {
		if !s.IsValid() || s.Addr().BitLen()-s.Bits() < 2 {
			return fmt.Errorf("pod network: no subnet for pods: %v", s)
		}
		subnets[i] = s.Masked()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.addNode(device, subnets); err != nil {
		return fmt.Errorf("pod network %v: %w", subnets, err)
	}
	r.devices[device] = subnets
	close(r.changed)
	r.changed = make(chan struct{})
	return errors.Join(r.routeServices(), r.masquerade(), r.serveNodePorts(), r.reachNodePorts())
}

func (r *Router) addNode(device string, subnets []netip.Prefix) error {
	inside, err := find(r.inside, device)
	if err != nil {
		return err
	}
	outside, err := find(r.machine, device)
	if err != nil {
		return err
	}
	if inside == nil || inside.Type() != "veth" || outside == nil { // earlier agents had bridges
		if inside, outside, err = r.cableToMachine(device, subnets); err != nil {
			return err
		}
	}
	if err := set(r.namespace, inside, map[setting]uint32{forwarding: 1}); err != nil {
		return fmt.Errorf("set forwarding: %w", err)
	}
	for _, h := range []struct {
		handle *netlink.Handle
		end    netlink.Link
	}{{r.inside, inside}, {r.machine, outside}} {
		if err := h.handle.LinkSetUp(h.end); err != nil {
			return fmt.Errorf("set device %s up: %w", device, err)
		}
	}
	for _, s := range subnets {
		if err := r.joinMachine(inside, outside, s); err != nil {
			return err
		}
		if err := returnByRouter(r.namespace, s); err != nil {
			return err
		}
		if err := r.returnByMachine(s); err != nil {
			return err
		}
	}
	return r.forward6(subnets)
}

// forward6 enables IPv6 forwarding in the router, if a subnet is IPv6. This setting cannot be changed by netlink.
func (r *Router) forward6(subnets []netip.Prefix) error {
	if !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Addr().Is6() }) {
		return nil
	}
	return netns.Do(r.namespace, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644)
	})
}

// cableToMachine recreates the cable. A device with our name whose other end is not here is about to be deleted, or
// left over from an agent that was interrupted.
func (r *Router) cableToMachine(device string, subnets []netip.Prefix) (inside, outside netlink.Link, err error) {
	for _, h := range []*netlink.Handle{r.inside, r.machine} {
		if err := remove(h, device); err != nil {
			return nil, nil, err
		}
	}
	if err := free(subnets); err != nil {
		return nil, nil, err
	}
	machine, err := netns.Current()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = machine.Close() }()
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: device, MTU: r.options.MTU}, PeerName: device,
		PeerNamespace: netlink.NsFd(machine.Fd())}
	if err := r.inside.LinkAdd(cable); err != nil {
		return nil, nil, fmt.Errorf("create veth %s: %w", device, err)
	}
	if outside, err = r.machine.LinkByName(device); err != nil {
		return nil, nil, err
	}
	return cable, outside, nil
}

// free returns an error if another device of the machine has an address in the subnets.
func free(subnets []netip.Prefix) error {
	devices, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, d := range devices {
		addresses, err := d.Addrs()
		if err != nil {
			continue // the device was deleted meanwhile
		}
		for _, a := range addresses {
			prefix, err := netip.ParsePrefix(a.String())
			for _, s := range subnets {
				if err == nil && prefix.Overlaps(s) {
					return fmt.Errorf("the device %s of this machine has the address %s", d.Name, prefix)
				}
			}
		}
	}
	return nil
}

// joinMachine routes a subnet to the router on the machine, and all other destinations of its pods to the machine on
// the router. Addresses of the subnet without a pod are unreachable: the machine would send their packets back.
func (r *Router) joinMachine(inside, outside netlink.Link, subnet netip.Prefix) error {
	own, machine := subnet.Addr(), subnet.Addr().Next()
	lo, err := r.inside.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := r.giveAddress(r.inside, lo, own); err != nil {
		return err
	}
	if own.Is6() {
		if err := r.giveAddress(r.inside, inside, gateway6); err != nil {
			return err
		}
	}
	if err := r.giveAddress(r.machine, outside, machine); err != nil {
		return err
	}
	back := via(outside, ipNet(subnet), Gateway(own))
	back.Src = machine.AsSlice()
	if err := r.machine.RouteReplace(back); err != nil {
		return fmt.Errorf("add the machine's route to %s: %w", subnet, err)
	}
	unreachable := &netlink.Route{Dst: ipNet(subnet), Type: unix.RTN_UNREACHABLE, Family: family(own)}
	if err := r.inside.RouteReplace(unreachable); err != nil {
		return fmt.Errorf("add route to %s: %w", subnet, err)
	}
	if err := r.inside.RouteReplace(direct(inside, single(machine))); err != nil {
		return fmt.Errorf("add route to the machine: %w", err)
	}
	return r.defaultRoutes(inside, subnet)
}

func (r *Router) giveAddress(h *netlink.Handle, device netlink.Link, a netip.Addr) error {
	address := &netlink.Addr{IPNet: single(a)}
	if a.Is6() {
		address.Flags = unix.IFA_F_NODAD // no other host is on the cable
	}
	if err := h.AddrReplace(device, address); err != nil {
		return fmt.Errorf("add address %s: %w", a, err)
	}
	return nil
}

const (
	// The table with the default route for packets from other sources; tables for the Nodes' subnets follow.
	firstTable = 1000
	// The rules for these tables come after the rule of the main table, and a subnet's rule before the general one.
	subnetRule, anyRule = 40_000, 50_000
	// The rule for replies through the machine comes before the main table, because that table has routes to their
	// pods.
	markRule = 20_000
)

// defaultRoutes routes packets to unknown destinations to the machine: packets from a subnet through the cable of that
// subnet's Node, where the replies arrive, and other packets through any cable.
func (r *Router) defaultRoutes(inside netlink.Link, subnet netip.Prefix) error {
	everything := ipNet(netip.PrefixFrom(subnet.Addr(), 0).Masked())
	own := netlink.NewRule()
	own.Src, own.Priority, own.Table = ipNet(subnet), subnetRule, firstTable+inside.Attrs().Index
	others := netlink.NewRule()
	others.Priority, others.Table = anyRule, firstTable
	for _, rule := range []*netlink.Rule{own, others} {
		rule.Family = family(subnet.Addr())
		if err := r.inside.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add routing rule: %w", err)
		}
		route := via(inside, everything, subnet.Addr().Next())
		route.Table = rule.Table
		if err := r.inside.RouteReplace(route); err != nil {
			return fmt.Errorf("add default route of %s: %w", subnet, err)
		}
	}
	return nil
}

// ReachServices routes the cluster IPs of Services on the machine to the router, through the cable of one of the Nodes,
// as soon as there is one. It removes the routes of earlier ranges that are not in ranges. balancers are the ranges of
// load balancers' addresses among them, which ServeAddresses need not translate.
func (r *Router) ReachServices(ranges []netip.Prefix, balancers ...netip.Prefix) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, old := range r.services {
		if slices.Contains(ranges, old) {
			continue
		}
		if route, err := r.toRouter(old); err == nil {
			_ = r.machine.RouteDel(route) // the device's routes are deleted with the device
		}
	}
	r.services, r.balancers = ranges, balancers
	return r.routeServices()
}

func (r *Router) routeServices() error {
	for _, services := range r.services {
		route, err := r.toRouter(services.Masked())
		if errors.Is(err, errNoSubnet) {
			continue
		}
		if err == nil {
			err = r.addBehind(route)
		}
		if err != nil {
			return fmt.Errorf("add the machine's route to %s: %w", services, err)
		}
	}
	return nil
}

// addBehind adds a route of the machine with a lower priority than routes of other routers to the same range, so that
// another agent that starts and stops does not affect the first one's cluster IPs.
func (r *Router) addBehind(route *netlink.Route) error {
	routes, err := r.machine.RouteListFiltered(route.Family, &netlink.Route{Dst: route.Dst, Table: unix.RT_TABLE_MAIN},
		netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	for _, k := range routes {
		if k.LinkIndex == route.LinkIndex {
			route.Priority = k.Priority
			return r.machine.RouteReplace(route)
		}
		route.Priority = max(route.Priority, k.Priority+1)
	}
	return r.machine.RouteReplace(route)
}

var errNoSubnet = errors.New("no Node has a subnet of that IP family")

// toRouter returns the machine's route to a destination of the router.
func (r *Router) toRouter(destination netip.Prefix) (*netlink.Route, error) {
	for _, device := range slices.Sorted(maps.Keys(r.devices)) {
		for _, s := range r.devices[device] {
			if s.Addr().Is4() != destination.Addr().Is4() {
				continue
			}
			outside, err := r.machine.LinkByName(device)
			if err != nil {
				return nil, err
			}
			route := via(outside, ipNet(destination), Gateway(s.Addr()))
			route.Src = s.Addr().Next().AsSlice()
			return route, nil
		}
	}
	return nil, errNoSubnet
}
