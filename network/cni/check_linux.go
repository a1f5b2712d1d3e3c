package cni

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/coxswain-dev/coxswain/network/netns"
	"github.com/coxswain-dev/coxswain/network/router"
)

// check reports how a container's connection differs from the state that ADD, and the plugins after this one, left.
func check(args *skel.CmdArgs) error {
	c, err := callOf(args)
	if err != nil {
		return err
	}
	if c.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "CHECK takes a prevResult", "")
	}
	result, err := types100.NewResultFromResult(c.PrevResult)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, "prevResult", err.Error())
	}
	own, err := c.of(c.attachment)
	if err != nil {
		return ioFailure("look for addresses", err)
	}
	if len(own) == 0 {
		return types.NewError(types.ErrUnknownContainer, "the container is not connected", c.attachment.String())
	}
	pod, err := openNetns(args.Netns)
	if err != nil {
		return err
	}
	defer pod.Close()
	r, err := c.router(0)
	if err != nil {
		return err
	}
	defer r.Close()
	cable, err := r.CheckPod(pod, args.IfName, own...)
	if err == nil {
		err = expectation{args, result}.compare(pod, cable, own)
	}
	if err != nil {
		return types.NewError(types.ErrInternal, "the container's connection has changed", err.Error())
	}
	return nil
}

// expectation is the result of ADD that a container must match.
type expectation struct {
	args *skel.CmdArgs
	*types100.Result
}

func (e expectation) compare(pod *os.File, cable router.Cable, own []netip.Addr) error {
	index := -1
	for i, each := range e.Interfaces {
		if each.Name == e.args.IfName && each.Sandbox == e.args.Netns {
			index = i
		}
	}
	if index < 0 {
		return fmt.Errorf("prevResult has no interface %s in %s", e.args.IfName, e.args.Netns)
	}
	device := e.Interfaces[index]
	if device.Mac != "" && device.Mac != cable.Pod.Hardware.String() {
		return fmt.Errorf("%s has the address %s rather than %s", device.Name, cable.Pod.Hardware, device.Mac)
	}
	if device.Mtu != 0 && device.Mtu != cable.Pod.MTU {
		return fmt.Errorf("%s has an MTU of %d rather than %d", device.Name, cable.Pod.MTU, device.Mtu)
	}
	expected := map[string]bool{}
	for _, ip := range e.IPs {
		if ip.Interface != nil && *ip.Interface == index {
			expected[ip.Address.String()] = true
		}
	}
	for _, a := range own {
		if !expected[netip.PrefixFrom(a, a.BitLen()).String()] {
			return fmt.Errorf("prevResult does not have the address %s, which is the container's", a)
		}
	}
	return netns.Do(pod, func() error {
		if err := hasAddresses(device.Name, expected); err != nil {
			return err
		}
		return hasRoutes(e.Routes)
	})
}

// hasAddresses returns an error that names an address that a device of this namespace lacks.
func hasAddresses(device string, expected map[string]bool) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		delete(expected, a.IPNet.String())
	}
	for address := range expected {
		return fmt.Errorf("%s does not have the address %s", device, address)
	}
	return nil
}

// hasRoutes returns an error that names a route that this namespace lacks.
func hasRoutes(expected []*types.Route) error {
	if len(expected) == 0 {
		return nil
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, w := range expected {
		found := false
		for _, r := range routes {
			found = found || sameNet(r.Dst, w.Dst) && (w.GW == nil || w.GW.Equal(r.Gw))
		}
		if !found {
			return fmt.Errorf("there is no route to %s by %v", w.Dst.String(), w.GW)
		}
	}
	return nil
}

// sameNet compares the destination of a route. Some versions of the library represent a default route as nil.
func sameNet(got *net.IPNet, want net.IPNet) bool {
	if got == nil {
		ones, _ := want.Mask.Size()
		return ones == 0
	}
	return got.IP.Equal(want.IP) && bytes.Equal(got.Mask, want.Mask)
}
