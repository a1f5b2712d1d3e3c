//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Networks are those of the Nodes of an agent: a bridge for each of them, in a network namespace of their
// own, into which a cable leads from every pod of the Node and one from the host, where the device has the
// first address of the Node's subnet:
//
//	pod eth0 ──┐
//	pod eth0 ──┼── bridge ──── cox… host: route to the subnet
//	pod eth0 ──┘     │
//	               routes   between the bridges
//	pod eth0 ──┐     │
//	pod eth0 ──┴── bridge ──── cox… host: route to the other subnet
//
// Pods reach each other without passing the host, so that neither its packet filter nor its forwarding has a
// say. The namespace lives as long as the agent or one of the pods' shims has it open, and when it goes its
// devices go, with the host's addresses and routes: however all of them end, nothing is left. An agent that
// is started again is given it by the shims.
//
// Their methods are safe for concurrent use.
type Networks struct {
	mu        sync.Mutex
	namespace *os.File
}

// Network is a Node's.
type Network struct {
	of      *Networks
	device  string // the host's end, and in the namespace the bridge
	subnet  netip.Prefix
	gateway netip.Addr // the host's address
}

const podDevice = "eth0"

// router is where a pod sends what is not for its own Node's subnet: each bridge has the address.
var router = netip.MustParseAddr("169.254.0.1")

// OpenNetworks makes a namespace for networks, or finds the one that one of the pods is connected to.
func OpenNetworks(pods []*Pod) (*Networks, error) {
	for _, p := range pods {
		if own, namespace, err := p.network(nil); err == nil {
			_ = own.Close()
			if namespace != nil {
				return &Networks{namespace: namespace}, nil
			}
		}
	}
	namespace, err := newNetwork()
	return &Networks{namespace: namespace}, err
}

// Close lets go of the networks. They stay while pods are connected to them.
func (s *Networks) Close() { _ = s.namespace.Close() }

// Open makes the network of a subnet, if it is not there. The device is the name of the host's end, of no
// more than 15 bytes, which nobody else on the host has.
func (s *Networks) Open(device string, subnet netip.Prefix) (*Network, error) {
	if !subnet.IsValid() || !subnet.Addr().Is4() {
		return nil, fmt.Errorf("pod network: the Node has no IPv4 subnet: %v", subnet)
	}
	n := &Network{of: s, device: device, subnet: subnet.Masked(), gateway: subnet.Masked().Addr().Next()}
	s.mu.Lock()
	defer s.mu.Unlock()
	there := false
	err := within(s.namespace, func() error {
		_, err := net.InterfaceByName(n.device)
		there = err == nil
		return nil
	})
	if _, failed := net.InterfaceByName(n.device); err == nil && there && failed == nil {
		return n, nil
	}
	if err == nil {
		err = n.free()
	}
	if err == nil {
		err = n.build(there)
	}
	if err != nil {
		return nil, fmt.Errorf("pod network %s: %w", n.subnet, err)
	}
	return n, nil
}

// free reports whether nobody else on the host has the subnet. A device of our name whose bridge is not here
// is about to go, or of an agent that ended halfway.
func (n *Network) free() error {
	if old, err := net.InterfaceByName(n.device); err == nil {
		if err := deleteLink(old.Index); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("old device %s: %w", n.device, err)
		}
	}
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
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Overlaps(n.subnet) {
				return fmt.Errorf("the device %s of this machine has the address %s", d.Name, prefix)
			}
		}
	}
	return nil
}

// build makes the bridge, where it is not there, and its cable to the host.
func (n *Network) build(there bool) error {
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }()
	err = within(n.of.namespace, func() error {
		if !there {
			if err := addBridge(n.device); err != nil {
				return fmt.Errorf("bridge: %w", err)
			}
		}
		if err := n.cable("host%d", n.device, host); err != nil {
			return err
		}
		return n.route()
	})
	if err != nil {
		return err
	}
	d, err := net.InterfaceByName(n.device)
	if err != nil {
		return err
	}
	if err := setUp(d.Index); err != nil {
		return err
	}
	return addAddress(d.Index, netip.PrefixFrom(n.gateway, n.subnet.Bits()))
}

// route has the bridge pass on what its pods send: to the pods of other bridges, and otherwise to the host by
// its own cable, where the answers come from.
func (n *Network) route() error {
	bridge, err := net.InterfaceByName(n.device)
	if err != nil {
		return err
	}
	if err := addAddress(bridge.Index, netip.PrefixFrom(router, router.BitLen())); err != nil {
		return fmt.Errorf("address of the router: %w", err)
	}
	if err := forward(bridge.Index); err != nil {
		return fmt.Errorf("forwarding: %w", err)
	}
	if err := addRoute(route{device: bridge.Index, to: n.subnet, table: unix.RT_TABLE_MAIN}); err != nil {
		return fmt.Errorf("route to %s: %w", n.subnet, err)
	}
	out := route{device: bridge.Index, gateway: n.gateway, table: firstTable + uint32(bridge.Index)}
	if err := addRule(n.subnet, out.table); err != nil { // a kernel with one table for all
		out.table = unix.RT_TABLE_MAIN
	}
	if err := addRoute(out); err != nil {
		return fmt.Errorf("route to the host: %w", err)
	}
	return nil
}

// firstTable begins the numbers of the bridges' routing tables.
const firstTable = 1000

// cable leads from the bridge, in whose namespace this is called, to a new device elsewhere.
func (n *Network) cable(here, there string, namespace *os.File) error {
	bridge, err := net.InterfaceByName(n.device)
	if err != nil {
		return err
	}
	if err := addVeth(here, bridge.Index, there, namespace); err != nil {
		return fmt.Errorf("veth %s: %w", there, err)
	}
	return nil
}

// Connect connects a pod, if it is not yet, whose shim then holds on to the network as well.
func (n *Network) Connect(p *Pod) error {
	ip, err := netip.ParseAddr(p.IP)
	if err != nil {
		return err
	}
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	own, known, err := p.network(n.of.namespace)
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	if known != nil {
		_ = known.Close()
	}
	missing := false
	err = within(own, func() error {
		_, err := net.InterfaceByName(podDevice)
		missing = err != nil
		return nil
	})
	if err == nil && missing {
		err = within(n.of.namespace, func() error { return n.cable("pod%d", podDevice, own) })
	}
	if err != nil {
		return err
	}
	return within(own, func() error {
		d, err := net.InterfaceByName(podDevice)
		if err != nil {
			return err
		}
		if err := addAddress(d.Index, netip.PrefixFrom(ip, n.subnet.Bits())); err != nil {
			return fmt.Errorf("address %s: %w", ip, err)
		}
		if err := setUp(d.Index); err != nil {
			return err
		}
		return addRoute(route{device: d.Index, gateway: router, table: unix.RT_TABLE_MAIN})
	})
}

// network exchanges namespaces with the shim: it gets the one of the bridges to hold, if there is one, and tells its
// own, and the bridges' that it has.
func (p *Pod) network(bridge *os.File) (own, known *os.File, err error) {
	var with []*os.File
	if bridge != nil {
		with = append(with, bridge)
	}
	conn, _, files, err := ask(p.Dir, &request{Op: opNetwork}, with...)
	if err != nil {
		return nil, nil, err
	}
	_ = conn.Close()
	switch len(files) {
	case 1:
		return files[0], nil, nil
	case 2:
		return files[0], files[1], nil
	}
	closeAll(files)
	return nil, nil, errors.New("the shim passed no network")
}

// shareNetwork is the shim's side of Pod.network.
func (s *shim) shareNetwork(conn *net.UnixConn, passed []*os.File) error {
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(passed) == 1 {
		if s.bridge != nil {
			_ = s.bridge.Close()
		}
		s.bridge = passed[0]
	}
	if s.bridge == nil {
		return send(conn, &response{Files: []string{"own"}}, own)
	}
	return send(conn, &response{Files: []string{"own", "bridge"}}, own, s.bridge)
}
