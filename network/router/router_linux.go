package router

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	vishvananda "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/coxswain-dev/coxswain/network/netns"
)

// Router is the namespace that routes for the pods of a machine. Its methods are safe for concurrent use.
type Router struct {
	options   Options
	namespace *os.File
	inside    *netlink.Handle
	machine   *netlink.Handle // the namespace of the process

	mu          sync.Mutex
	devices     map[string][]netip.Prefix // of Nodes: the subnets
	services    []netip.Prefix
	peers       peers
	masquerades bool
	nodePorts   *Ports                                  // nil where the machine does not answer at them
	hostPorts   map[bool]bool                           // whether there are any: of IPv4 and of IPv6, once known
	addresses   map[uint8]map[netip.AddrPort]netip.Addr // of Services, with stand-ins; nil where they are not known
	standIns    map[bool]standIns                       // of IPv4 and of IPv6, once they were asked for
	closed      bool
	changed     chan struct{} // closed when there is another Node
}

// Options are what all devices of a router have in common.
type Options struct {
	// MTU is that of the pods' devices, in bytes; 1500 where zero.
	MTU int
}

// The addresses at which pods and the machine find the router, on whatever device they ask.
var (
	gateway4 = netip.MustParseAddr("169.254.0.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// Gateway is where pods and the machine find the router, for what has an address like this one.
func Gateway(a netip.Addr) netip.Addr {
	if a.Is4() {
		return gateway4
	}
	return gateway6
}

// Open makes a router, or takes up the one in a namespace that an earlier process made. The Router owns the file.
func Open(namespace *os.File, o Options) (r *Router, err error) {
	if namespace == nil {
		if namespace, err = netns.New(); err != nil {
			return nil, err
		}
	}
	r = &Router{options: o, namespace: namespace, devices: map[string][]netip.Prefix{},
		hostPorts: map[bool]bool{}, standIns: map[bool]standIns{},
		changed: make(chan struct{})}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if r.inside, err = handle(namespace); err != nil {
		return nil, err
	}
	if r.machine, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return r, r.prepare()
}

// handle is a netlink connection to another namespace.
func handle(namespace *os.File) (*netlink.Handle, error) {
	raw, err := namespace.SyscallConn()
	if err != nil {
		return nil, err
	}
	var h *netlink.Handle
	if failed := raw.Control(func(fd uintptr) {
		h, err = netlink.NewHandleAt(vishvananda.NsHandle(fd), unix.NETLINK_ROUTE)
	}); failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	return h, nil
}

// prepare gives the router its loopback device, which has the router's addresses, and its guard, before there are pods.
// Addresses of scope host are no sources of what it sends.
func (r *Router) prepare() error {
	lo, err := r.inside.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	if err := r.inside.LinkSetUp(lo); err != nil {
		return fmt.Errorf("lo: %w", err)
	}
	address := &netlink.Addr{IPNet: single(gateway4), Scope: unix.RT_SCOPE_HOST}
	if err := r.inside.AddrReplace(lo, address); err != nil {
		return fmt.Errorf("address of the router: %w", err)
	}
	return guard(r.namespace)
}

// Namespace is the router's, which is open as long as the Router is.
func (r *Router) Namespace() *os.File { return r.namespace }

// Close lets go of the router. It stays while others have its namespace open. If it has no pods, it is about to go, and
// what leads to it in the machine's packet filter is removed.
func (r *Router) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.inside != nil && r.machine != nil && !r.hasPods() {
		_ = r.leaveMachine() // RemoveMachine removes what is left
	}
	for _, h := range []*netlink.Handle{r.inside, r.machine} {
		if h != nil {
			h.Close()
		}
	}
	_ = r.namespace.Close()
}

// Changed is closed when the router gets another Node. A caller that looks at what the Router has asks for it before.
func (r *Router) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Machines are the addresses of the machine's ends, from which it reaches pods, one for each subnet of each Node.
func (r *Router) Machines() []netip.Addr { return r.ofSubnets(netip.Addr.Next) }

// Own are the router's own addresses, one for each subnet of each Node.
func (r *Router) Own() []netip.Addr {
	return r.ofSubnets(func(a netip.Addr) netip.Addr { return a })
}

func (r *Router) ofSubnets(address func(netip.Addr) netip.Addr) (all []netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, subnets := range r.devices {
		for _, s := range subnets {
			all = append(all, address(s.Addr()))
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// single is the network of one address.
func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// family is the kernel's number.
func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// via is a route by a gateway that is right behind the device, whatever its address.
func via(device netlink.Link, to *net.IPNet, gateway netip.Addr) *netlink.Route {
	return &netlink.Route{LinkIndex: device.Attrs().Index, Dst: to, Gw: gateway.AsSlice(),
		Flags: int(netlink.FLAG_ONLINK), Family: family(gateway)}
}

// direct is a route to what is right behind the device.
func direct(device netlink.Link, to *net.IPNet) *netlink.Route {
	return &netlink.Route{LinkIndex: device.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}
}

// find is a device, nil where there is none of that name.
func find(h *netlink.Handle, name string) (netlink.Link, error) {
	device, err := h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	return device, err
}

// remove deletes a device, if it is there.
func remove(h *netlink.Handle, name string) error {
	device, err := find(h, name)
	if err != nil || device == nil {
		return err
	}
	if err := h.LinkDel(device); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("old device %s: %w", name, err)
	}
	return nil
}
