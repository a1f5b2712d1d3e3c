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

// Router is the network namespace that routes for the pods of a machine. Its methods are safe for concurrent use.
type Router struct {
	options   Options
	namespace *os.File
	inside    *netlink.Handle
	machine   *netlink.Handle // in the namespace of the process

	mu          sync.Mutex                // guards the fields below
	devices     map[string][]netip.Prefix // subnets by device of a Node
	services    []netip.Prefix
	balancers   []netip.Prefix // the part of services with load balancers' addresses
	peers       peers
	masquerades bool
	nodePorts   *Ports                                  // nil if node ports are not served
	reached     []NodePort                              // node ports that the machine itself reaches
	hostPorts   map[bool]bool                           // whether there are any, by "is IPv4"; missing if unknown
	addresses   map[uint8]map[netip.AddrPort]netip.Addr // of Services, with stand-ins; nil if unknown
	standIns    map[bool]standIns                       // by "is IPv4", after the first request
	closed      bool
	changed     chan struct{} // closed and replaced when a Node is added
}

// Options are shared by all devices of a router.
type Options struct {
	// MTU is the MTU of the pods' devices, in bytes; zero selects 1500.
	MTU int
}

// The router's addresses for pods and the machine, on every device.
var (
	gateway4 = netip.MustParseAddr("169.254.0.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// Gateway returns the router's address for pods and the machine, in the family of an address.
func Gateway(a netip.Addr) netip.Addr {
	if a.Is4() {
		return gateway4
	}
	return gateway6
}

// Open creates a router, or opens the one in a namespace that an earlier process created. The Router owns the file.
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

// handle opens a netlink connection to another namespace.
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

// prepare sets up the router's loopback device, with the router's addresses, and its guard, before there are pods.
// Addresses of scope host are not used as sources of the router's own packets.
func (r *Router) prepare() error {
	lo, err := r.inside.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := r.inside.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	address := &netlink.Addr{IPNet: single(gateway4), Scope: unix.RT_SCOPE_HOST}
	if err := r.inside.AddrReplace(lo, address); err != nil {
		return fmt.Errorf("set address of the router: %w", err)
	}
	return guard(r.namespace)
}

// Namespace returns the router's namespace, which stays open until Close.
func (r *Router) Namespace() *os.File { return r.namespace }

// Close closes the router. Its namespace stays while other processes have it open. If it has no pods, it is about to
// end, so Close removes its chains from the machine's packet filter.
func (r *Router) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.inside != nil && r.machine != nil && !r.hasPods() {
		_ = r.leaveMachine() // RemoveMachine removes the rest
	}
	for _, h := range []*netlink.Handle{r.inside, r.machine} {
		if h != nil {
			h.Close()
		}
	}
	_ = r.namespace.Close()
}

// Changed returns a channel that is closed when the router gets another Node. Call it before reading the router's
// state.
func (r *Router) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Machines returns the addresses of the machine's ends, from where it reaches pods: one for each subnet of each Node.
func (r *Router) Machines() []netip.Addr { return r.ofSubnets(netip.Addr.Next) }

// Own returns the router's own addresses, one for each subnet of each Node.
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

// single returns the network of one address.
func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// family returns the kernel's number of an address's family.
func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// via returns a route through a gateway that is directly behind the device, whatever the device's address is.
func via(device netlink.Link, to *net.IPNet, gateway netip.Addr) *netlink.Route {
	return &netlink.Route{LinkIndex: device.Attrs().Index, Dst: to, Gw: gateway.AsSlice(),
		Flags: int(netlink.FLAG_ONLINK), Family: family(gateway)}
}

// direct returns a route to hosts directly behind the device.
func direct(device netlink.Link, to *net.IPNet) *netlink.Route {
	return &netlink.Route{LinkIndex: device.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK}
}

// find returns a device, or nil if none has the name.
func find(h *netlink.Handle, name string) (netlink.Link, error) {
	device, err := h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	return device, err
}

// remove deletes a device, if it exists.
func remove(h *netlink.Handle, name string) error {
	device, err := find(h, name)
	if err != nil || device == nil {
		return err
	}
	if err := h.LinkDel(device); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete old device %s: %w", name, err)
	}
	return nil
}
