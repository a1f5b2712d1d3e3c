package router

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PodDevice is the name of a pod's own device.
const PodDevice = "eth0"

// ConnectPod connects a pod's namespace with its addresses, if it is not connected yet. The address is the pod's: what
// an earlier pod has left of it is removed.
func (r *Router) ConnectPod(pod *os.File, addresses ...netip.Addr) error {
	if len(addresses) == 0 {
		return errors.New("a pod without an address cannot be connected")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	own, err := handle(pod)
	if err != nil {
		return err
	}
	defer own.Close()
	name := podEnd(addresses[0])
	inside, err := find(r.inside, name)
	if err != nil {
		return err
	}
	end, err := find(own, PodDevice)
	if err != nil {
		return err
	}
	if inside == nil || end == nil || inside.Attrs().ParentIndex != end.Attrs().Index {
		if inside, end, err = r.cableToPod(pod, own, name); err != nil {
			return err
		}
	}
	if err := r.routePod(inside, addresses); err != nil {
		return err
	}
	return setUpPod(own, end, addresses)
}

// podEnd names the router's end of a pod's cable after the pod's address, which no two have. It is at most 15 bytes.
func podEnd(a netip.Addr) string {
	name := a.AsSlice()
	if a.Is6() {
		sum := sha256.Sum256(name)
		name = sum[:6]
	}
	return podPrefix + hex.EncodeToString(name)
}

// podPrefix begins the names of the router's ends of pods' cables.
const podPrefix = "pod"

func (r *Router) cableToPod(pod *os.File, own *netlink.Handle, name string) (inside, end netlink.Link, err error) {
	if err := remove(r.inside, name); err != nil {
		return nil, nil, err
	}
	if err := remove(own, PodDevice); err != nil {
		return nil, nil, err
	}
	raw, err := pod.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: r.options.MTU}, PeerName: PodDevice}
	if failed := raw.Control(func(fd uintptr) {
		cable.PeerNamespace = netlink.NsFd(fd)
		err = r.inside.LinkAdd(cable)
	}); failed != nil {
		return nil, nil, failed
	}
	if err != nil {
		return nil, nil, fmt.Errorf("veth %s: %w", name, err)
	}
	end, err = own.LinkByName(PodDevice)
	return cable, end, err
}

// routePod has the router pass on what the pod sends from its own addresses, and send it what is for them.
func (r *Router) routePod(inside netlink.Link, addresses []netip.Addr) error {
	err := set(r.namespace, inside, map[setting]uint32{forwarding: 1, rpFilter: strict, sendRedirects: 0})
	if err != nil {
		return fmt.Errorf("forwarding: %w", err)
	}
	if err := r.inside.LinkSetUp(inside); err != nil {
		return fmt.Errorf("device %s: %w", inside.Attrs().Name, err)
	}
	for _, a := range addresses {
		if a.Is6() {
			if err := r.giveAddress(r.inside, inside, gateway6); err != nil {
				return err
			}
		}
		if err := r.inside.RouteReplace(direct(inside, single(a))); err != nil {
			return fmt.Errorf("route to %s: %w", a, err)
		}
	}
	return nil
}

// setUpPod does what there is to do in the pod's own namespace.
func setUpPod(own *netlink.Handle, end netlink.Link, addresses []netip.Addr) error {
	if err := own.LinkSetUp(end); err != nil {
		return fmt.Errorf("device %s: %w", PodDevice, err)
	}
	for _, a := range addresses {
		address := &netlink.Addr{IPNet: single(a)}
		if a.Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := own.AddrReplace(end, address); err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
		everything := ipNet(netip.PrefixFrom(a, 0).Masked())
		if err := own.RouteReplace(via(end, everything, gatewayOf(a))); err != nil {
			return fmt.Errorf("default route: %w", err)
		}
	}
	return nil
}
