package router

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// Remove removes a router from the machine: its cables, tunnel, routes, and its part of the machine's packet filter.
// namespace is the router's, or nil if it is gone. Chains and ports of other routers on the machine stay, and so does
// the shared part while there is another router. The machine keeps forwarding, because others may need it.
func Remove(namespace *os.File) error {
	machine, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer machine.Close()
	if namespace != nil {
		if err := removeDevices(namespace); err != nil {
			return err
		}
	}
	cables, err := cablesOf(machine)
	if err != nil {
		return err
	}
	if len(cables) == 0 {
		return errors.Join(RemoveMachine(), replaceRoutes(machine, nil))
	}
	return removeStale(machine, cables)
}

// removeDevices deletes the router's ends of the cables to the machine, and so also the machine's ends, and the tunnel,
// because its port is the machine's.
func removeDevices(namespace *os.File) error {
	inside, err := handle(namespace)
	if err != nil {
		return err
	}
	defer inside.Close()
	devices, err := inside.LinkList()
	if err != nil {
		return fmt.Errorf("list devices of the router: %w", err)
	}
	for _, d := range devices {
		name := d.Attrs().Name
		if name != vxlanDevice && !strings.HasPrefix(name, machinePrefix) {
			continue
		}
		if err := remove(inside, name); err != nil {
			return err
		}
	}
	return nil
}

// cablesOf returns the machine's ends of the cables to routers, by index.
func cablesOf(machine *netlink.Handle) (map[int]netlink.Link, error) {
	devices, err := machine.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices of the machine: %w", err)
	}
	cables := map[int]netlink.Link{}
	for _, d := range devices {
		if strings.HasPrefix(d.Attrs().Name, machinePrefix) && d.Type() == "veth" {
			cables[d.Attrs().Index] = d
		}
	}
	return cables, nil
}

// removeStale deletes chains and maps of subnets that no router on these cables has, and host ports of pods that are
// not behind one of the cables.
func removeStale(machine *netlink.Handle, cables map[int]netlink.Link) error {
	current := map[string]bool{}
	for _, d := range cables {
		addresses, err := machine.AddrList(d, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("list addresses of %s: %w", d.Attrs().Name, err)
		}
		for _, a := range addresses {
			if ip, ok := netip.AddrFromSlice(a.IP); ok {
				own := ip.Unmap().Prev() // the router's address is right before the machine's
				current[chainOf(netip.PrefixFrom(own, own.BitLen()))] = true
			}
		}
	}
	behindCable := func(pod netip.Addr) bool {
		routes, err := machine.RouteGet(pod.AsSlice())
		return err == nil && len(routes) > 0 && cables[routes[0].LinkIndex] != nil
	}
	var problems []error
	for _, like := range []netip.Addr{gateway4, gateway6} {
		problems = append(problems, deleteChains(like, func(subnet string) bool { return !current[subnet] }))
		if h := hostPortTable(like); h.present() {
			problems = append(problems, h.replace(like, nil, behindCable)) // no pod has the gateway's address
		}
	}
	return errors.Join(problems...)
}

// leaveMachine deletes the chains and maps of this router's subnets from the table "coxswain".
func (r *Router) leaveMachine() error {
	var problems []error
	for _, subnets := range r.devices {
		for _, s := range subnets {
			problems = append(problems,
				deleteChains(s.Addr(), func(subnet string) bool { return subnet == chainOf(s) }))
		}
	}
	return errors.Join(problems...)
}

// deleteChains deletes chains and maps of a Node's subnet from the table "coxswain". match selects the subnet by its
// chainOf.
func deleteChains(like netip.Addr, match func(subnet string) bool) error {
	return deleteNamed(like, func(name string) bool { return subnetOf(name) != "" && match(subnetOf(name)) })
}

// subnetOf returns the part of a chain's or map's name that identifies a Node's subnet, or "".
func subnetOf(name string) string {
	if index := strings.Index(name, subnetChain); index >= 0 {
		return name[index:]
	}
	return ""
}

// deleteNamed deletes chains and maps with matching names from the table "coxswain".
func deleteNamed(like netip.Addr, named func(string) bool) error {
	return nft.Once(nil, func(t *nft.Transaction) error {
		chains, err := t.ListChainsOfTableFamily(tableFamily(like))
		if err != nil {
			return err
		}
		found := false
		for _, c := range chains {
			if c.Table.Name == tableName && named(c.Name) {
				t.FlushChain(c)
				t.DelChain(c)
				found = true
			}
		}
		if !found {
			return nil
		}
		sets, err := t.GetSets(&nftables.Table{Name: tableName, Family: tableFamily(like)})
		if err != nil {
			return err
		}
		for _, s := range sets {
			if named(s.Name) {
				t.DelSet(s)
			}
		}
		return t.Commit()
	})
}

// RemoveMachine removes all of the routers' rules from the machine's packet filter: the table "coxswain" of each
// family, and rules in chains of other programs. Running pods lose their connection to the machine's network.
func RemoveMachine() error {
	var problems []error
	for _, like := range []netip.Addr{gateway4, gateway6} {
		problems = append(problems,
			nft.DeleteTable(nil, &nftables.Table{Name: tableName, Family: tableFamily(like)}),
			eachForwardChain(like, func(t *nft.Transaction, _ *nftables.Chain, ours []*nftables.Rule) {
				for _, r := range ours {
					if err := t.DelRule(r); err != nil {
						problems = append(problems, err)
					}
				}
			}))
	}
	return errors.Join(problems...)
}
