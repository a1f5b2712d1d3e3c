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

// AddNode gives a Node its subnets: a cable between the router and the machine, by which the two reach each other and
// nobody else of the machine is asked. Both its ends have the same name, which begins with "cox", has no more than 15
// bytes, and which nobody else on the machine has. AddNode may be repeated.
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
	return errors.Join(r.routeServices(), r.masquerade(), r.serveNodePorts())
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
		return fmt.Errorf("forwarding: %w", err)
	}
	for _, h := range []struct {
		of  *netlink.Handle
		end netlink.Link
	}{{r.inside, inside}, {r.machine, outside}} {
		if err := h.of.LinkSetUp(h.end); err != nil {
			return fmt.Errorf("device %s: %w", device, err)
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

// forward6 has the router forward IPv6, where it has subnets of it. The kernel has no such setting by netlink.
func (r *Router) forward6(subnets []netip.Prefix) error {
	if !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Addr().Is6() }) {
		return nil
	}
	return netns.Do(r.namespace, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644)
	})
}

// cableToMachine makes the cable anew. A device of our name whose other end is not here is about to go, or is left
// by an agent that ended halfway.
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
		return nil, nil, fmt.Errorf("veth %s: %w", device, err)
	}
	if outside, err = r.machine.LinkByName(device); err != nil {
		return nil, nil, err
	}
	return cable, outside, nil
}

// free reports whether nobody else on the machine has the subnets.
func free(subnets []netip.Prefix) error {
	devices, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, d := range devices {
		addresses, err := d.Addrs()
		if err != nil {
			continue // it has gone meanwhile
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

// joinMachine routes a subnet to the router on the machine, and all else that its pods send to the machine on the
// router. An address of the subnet that no pod has is unreachable: it must not go to the machine, which would send it
// back.
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
		return fmt.Errorf("the machine's route to %s: %w", subnet, err)
	}
	nobody := &netlink.Route{Dst: ipNet(subnet), Type: unix.RTN_UNREACHABLE, Family: family(own)}
	if err := r.inside.RouteReplace(nobody); err != nil {
		return fmt.Errorf("route to %s: %w", subnet, err)
	}
	if err := r.inside.RouteReplace(direct(inside, single(machine))); err != nil {
		return fmt.Errorf("route to the machine: %w", err)
	}
	return r.defaultRoutes(inside, subnet)
}

func (r *Router) giveAddress(h *netlink.Handle, device netlink.Link, a netip.Addr) error {
	address := &netlink.Addr{IPNet: single(a)}
	if a.Is6() {
		address.Flags = unix.IFA_F_NODAD // nobody else is on the cable
	}
	if err := h.AddrReplace(device, address); err != nil {
		return fmt.Errorf("address %s: %w", a, err)
	}
	return nil
}

const (
	// The table of default routes for what comes from no Node's subnet; those of the Nodes' subnets follow.
	firstTable = 1000
	// The rules that lead to the tables come after that of the main table, and the one for a subnet before the other.
	subnetRule, anyRule = 40_000, 50_000
	// The rule for answers that go by the machine comes before the main table, which knows their pods.
	markRule = 20_000
)

// defaultRoutes have the router send what is for nobody it knows to the machine: packets of a subnet by the cable of
// that subnet's Node, where the answers come from; others by any.
func (r *Router) defaultRoutes(inside netlink.Link, subnet netip.Prefix) error {
	everything := ipNet(netip.PrefixFrom(subnet.Addr(), 0).Masked())
	own := netlink.NewRule()
	own.Src, own.Priority, own.Table = ipNet(subnet), subnetRule, firstTable+inside.Attrs().Index
	others := netlink.NewRule()
	others.Priority, others.Table = anyRule, firstTable
	for _, rule := range []*netlink.Rule{own, others} {
		rule.Family = family(subnet.Addr())
		if err := r.inside.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("routing rule: %w", err)
		}
		route := via(inside, everything, subnet.Addr().Next())
		route.Table = rule.Table
		if err := r.inside.RouteReplace(route); err != nil {
			return fmt.Errorf("default route of %s: %w", subnet, err)
		}
	}
	return nil
}

// ReachServices routes the cluster IPs of Services on the machine to the router, by the cable of one of the Nodes, as
// soon as there is one. Ranges that it was given before and that are not among these are no longer routed.
func (r *Router) ReachServices(ranges []netip.Prefix) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, old := range r.services {
		if slices.Contains(ranges, old) {
			continue
		}
		if route, err := r.toRouter(old); err == nil {
			_ = r.machine.RouteDel(route) // the device's routes go with the device
		}
	}
	r.services = ranges
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
			return fmt.Errorf("the machine's route to %s: %w", services, err)
		}
	}
	return nil
}

// addBehind adds a route of the machine's behind those of other routers to the same range: another agent that comes and
// goes leaves the first one's cluster IPs alone.
func (r *Router) addBehind(route *netlink.Route) error {
	known, err := r.machine.RouteListFiltered(route.Family, &netlink.Route{Dst: route.Dst, Table: unix.RT_TABLE_MAIN},
		netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	for _, k := range known {
		if k.LinkIndex == route.LinkIndex {
			route.Priority = k.Priority
			return r.machine.RouteReplace(route)
		}
		route.Priority = max(route.Priority, k.Priority+1)
	}
	return r.machine.RouteReplace(route)
}

var errNoSubnet = errors.New("no Node has a subnet of that IP family")

// toRouter is the machine's route to what the router reaches.
func (r *Router) toRouter(to netip.Prefix) (*netlink.Route, error) {
	for _, device := range slices.Sorted(maps.Keys(r.devices)) {
		for _, s := range r.devices[device] {
			if s.Addr().Is4() != to.Addr().Is4() {
				continue
			}
			outside, err := r.machine.LinkByName(device)
			if err != nil {
				return nil, err
			}
			route := via(outside, ipNet(to), Gateway(s.Addr()))
			route.Src = s.Addr().Next().AsSlice()
			return route, nil
		}
	}
	return nil, errNoSubnet
}
