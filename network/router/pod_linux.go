package router

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// PodDevice is the default name of a pod's own device.
const PodDevice = "eth0"

// Cable is a pair of devices that connects a pod with the router.
type Cable struct{ Router, Pod End }

// End is one end of a cable.
type End struct {
	Name     string
	Hardware net.HardwareAddr
	MTU      int // in bytes
}

// ConnectPod connects a pod's namespace with these addresses, if it is not connected yet. It removes the remains of an
// earlier pod with the same address.
func (r *Router) ConnectPod(pod *os.File, addresses ...netip.Addr) error {
	_, err := r.ConnectPodBy(pod, PodDevice, addresses...)
	return err
}

// ConnectPodBy is like ConnectPod, with a name for the pod's device. It removes another device of that name.
func (r *Router) ConnectPodBy(pod *os.File, device string, addresses ...netip.Addr) (Cable, error) {
	if len(addresses) == 0 {
		return Cable{}, errors.New("a pod without an address cannot be connected")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	own, err := handle(pod)
	if err != nil {
		return Cable{}, err
	}
	defer own.Close()
	name := podEnd(addresses[0])
	inside, end, err := r.ends(own, name, device)
	if err != nil {
		return Cable{}, err
	}
	if inside == nil || end == nil || inside.Attrs().ParentIndex != end.Attrs().Index {
		if inside, end, err = r.cableToPod(pod, own, name, device); err != nil {
			return Cable{}, err
		}
	}
	if err := r.routePod(inside, addresses); err != nil {
		return Cable{}, err
	}
	if err := setUpPod(own, end, addresses); err != nil {
		return Cable{}, err
	}
	return cableOf(inside, end), errors.Join(awaitUp(r.inside, inside), awaitUp(own, end))
}

// awaitUp waits until a device can send. The kernel's link watch enables it a moment after both ends of its cable are
// up. Earlier packets are lost, and a lost ARP reply delays a pod's first connection by a second. Since Linux 6.8
// reading the state speeds up the link watch. awaitUp returns nil after a second in any case, so that no pod fails
// because of a slow device.
func awaitUp(h *netlink.Handle, device netlink.Link) error {
	up := func(context.Context) (bool, error) {
		now, err := h.LinkByIndex(device.Attrs().Index)
		return err == nil && now.Attrs().OperState == netlink.OperUp, err
	}
	err := wait.PollUntilContextTimeout(context.Background(), time.Millisecond, time.Second, true, up)
	if err != nil && !wait.Interrupted(err) {
		return fmt.Errorf("device %s: %w", device.Attrs().Name, err)
	}
	return nil
}

// CheckPod reports missing parts of a pod's cable, and of the router's routes to the pod.
func (r *Router) CheckPod(pod *os.File, device string, addresses ...netip.Addr) (Cable, error) {
	if len(addresses) == 0 {
		return Cable{}, errors.New("a pod without an address is not connected")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	own, err := handle(pod)
	if err != nil {
		return Cable{}, err
	}
	defer own.Close()
	name := podEnd(addresses[0])
	inside, end, err := r.ends(own, name, device)
	switch {
	case err != nil:
		return Cable{}, err
	case inside == nil:
		return Cable{}, fmt.Errorf("the router has no device %s", name)
	case end == nil:
		return Cable{}, fmt.Errorf("the pod has no device %s", device)
	case inside.Attrs().ParentIndex != end.Attrs().Index:
		return Cable{}, fmt.Errorf("the pod's device %s does not lead to the router", device)
	case inside.Attrs().Flags&net.FlagUp == 0 || end.Attrs().Flags&net.FlagUp == 0:
		return Cable{}, fmt.Errorf("%s is down at one end", device)
	}
	for _, a := range addresses {
		route := direct(inside, single(a))
		found, err := r.inside.RouteListFiltered(family(a), route, netlink.RT_FILTER_DST|netlink.RT_FILTER_OIF)
		if err != nil {
			return Cable{}, fmt.Errorf("find route to %s: %w", a, err)
		}
		if len(found) == 0 {
			return Cable{}, fmt.Errorf("the router has no route to %s", a)
		}
	}
	return cableOf(inside, end), nil
}

// DisconnectPod removes the cable of a pod by the first of the addresses that it was connected with. It is not an error
// if there is none.
func (r *Router) DisconnectPod(address netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return remove(r.inside, podEnd(address))
}

// ends returns both ends of a pod's cable; an end is nil if there is no device of its name.
func (r *Router) ends(own *netlink.Handle, name, device string) (inside, end netlink.Link, err error) {
	if inside, err = find(r.inside, name); err != nil {
		return nil, nil, err
	}
	end, err = find(own, device)
	return inside, end, err
}

func cableOf(inside, end netlink.Link) Cable {
	describe := func(l netlink.Link) End {
		return End{Name: l.Attrs().Name, Hardware: l.Attrs().HardwareAddr, MTU: l.Attrs().MTU}
	}
	return Cable{Router: describe(inside), Pod: describe(end)}
}

// podEnd derives the name of the router's end of a pod's cable from the pod's address, so that it is unique. It is at
// most 15 bytes.
func podEnd(a netip.Addr) string {
	name := a.AsSlice()
	if a.Is6() {
		sum := sha256.Sum256(name)
		name = sum[:6]
	}
	return podPrefix + hex.EncodeToString(name)
}

// podPrefix is the name prefix of the router's ends of pods' cables.
const podPrefix = "pod"

func (r *Router) cableToPod(pod *os.File, own *netlink.Handle, name, device string) (inside, end netlink.Link,
	err error) {
	if err := remove(r.inside, name); err != nil {
		return nil, nil, err
	}
	if err := remove(own, device); err != nil {
		return nil, nil, err
	}
	raw, err := pod.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: r.options.MTU}, PeerName: device}
	if failed := raw.Control(func(fd uintptr) {
		cable.PeerNamespace = netlink.NsFd(fd)
		err = r.inside.LinkAdd(cable)
	}); failed != nil {
		return nil, nil, failed
	}
	if err != nil {
		return nil, nil, fmt.Errorf("create veth %s: %w", name, err)
	}
	inside, end, err = r.ends(own, name, device)
	if err == nil && (inside == nil || end == nil) {
		err = fmt.Errorf("veth %s has gone meanwhile", name)
	}
	return inside, end, err
}

// routePod makes the router forward packets from the pod's own addresses, and route packets to them.
func (r *Router) routePod(inside netlink.Link, addresses []netip.Addr) error {
	err := set(r.namespace, inside, map[setting]uint32{forwarding: 1, rpFilter: strict, sendRedirects: 0})
	if err != nil {
		return fmt.Errorf("set forwarding: %w", err)
	}
	if err := r.inside.LinkSetUp(inside); err != nil {
		return fmt.Errorf("set device %s up: %w", inside.Attrs().Name, err)
	}
	for _, a := range addresses {
		if a.Is6() {
			if err := r.giveAddress(r.inside, inside, gateway6); err != nil {
				return err
			}
		}
		if err := r.inside.RouteReplace(direct(inside, single(a))); err != nil {
			return fmt.Errorf("add route to %s: %w", a, err)
		}
	}
	return nil
}

// setUpPod sets up the device in the pod's own namespace.
func setUpPod(own *netlink.Handle, end netlink.Link, addresses []netip.Addr) error {
	if err := own.LinkSetUp(end); err != nil {
		return fmt.Errorf("set device %s up: %w", end.Attrs().Name, err)
	}
	for _, a := range addresses {
		address := &netlink.Addr{IPNet: single(a)}
		if a.Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := own.AddrReplace(end, address); err != nil {
			return fmt.Errorf("add address %s: %w", a, err)
		}
		everything := ipNet(netip.PrefixFrom(a, 0).Masked())
		if err := own.RouteReplace(via(end, everything, Gateway(a))); err != nil {
			return fmt.Errorf("add default route: %w", err)
		}
	}
	return nil
}
