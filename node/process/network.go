//go:build linux

package process

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Network connects the pods of a node with each other and with the node. It is a bridge in a network namespace of its own,
// into which a cable leads from every pod and one from the host, where the device has the first address of the subnet:
//
//	pod eth0 ──┐
//	pod eth0 ──┼── bridge ──── cox… host: route to the subnet
//	pod eth0 ──┘
//
// Pods reach each other without passing the host, so that neither its packet filter nor its forwarding has a say. The namespace
// lives as long as the agent or one of the pods' shims has it open, and when it goes its devices go, with the host's address and
// route: however all of them end, nothing is left. An agent that is started again is given it by the shims.
//
// Its methods are safe for concurrent use.
type Network struct {
	device  string // the host's end
	subnet  netip.Prefix
	gateway netip.Addr

	mu     sync.Mutex
	bridge *os.File // its namespace
}

const (
	bridgeName = "pods"
	podDevice  = "eth0"
)

// OpenNetwork makes the network of a subnet, or finds the one that one of the pods is connected to. The device is the name of the
// host's end, of no more than 15 bytes.
func OpenNetwork(device string, subnet netip.Prefix, pods []*Pod) (*Network, error) {
	n := &Network{device: device, subnet: subnet.Masked(), gateway: subnet.Masked().Addr().Next()}
	for _, p := range pods {
		if own, bridge, err := p.network(nil); err == nil {
			_ = own.Close()
			if n.bridge = bridge; bridge != nil {
				return n, nil
			}
		}
	}
	if err := n.free(); err != nil {
		return nil, err
	}
	var err error
	if n.bridge, err = newNetwork(); err != nil {
		return nil, err
	}
	if err := n.build(); err != nil {
		n.Close()
		return nil, fmt.Errorf("pod network %s: %w", n.subnet, err)
	}
	return n, nil
}

// free reports whether nobody else on the host has the subnet. A device of our name without a pod that knows of it
// is about to go, or of an agent that ended halfway.
func (n *Network) free() error {
	if old, err := net.InterfaceByName(n.device); err == nil {
		if err := deleteLink(old.Index); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("pod network: old device %s: %w", n.device, err)
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
				return fmt.Errorf("pod network %s: the device %s of this machine has the address %s", n.subnet, d.Name, prefix)
			}
		}
	}
	return nil
}

func (n *Network) build() error {
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }()
	err = within(n.bridge, func() error {
		if err := addBridge(bridgeName); err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		return n.cable("host", n.device, host)
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

// cable leads from the bridge, in whose namespace this is called, to a new device elsewhere.
func (n *Network) cable(here, there string, namespace *os.File) error {
	bridge, err := net.InterfaceByName(bridgeName)
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
	n.mu.Lock()
	defer n.mu.Unlock()
	own, known, err := p.network(n.bridge)
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
		err = within(n.bridge, func() error { return n.cable("pod%d", podDevice, own) })
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
		return addDefaultRoute(d.Index, n.gateway)
	})
}

// Close lets go of the network. It stays while pods are connected to it.
func (n *Network) Close() { _ = n.bridge.Close() }

// network exchanges namespaces with the shim: it gets the one of the pods' bridge to hold, if there is one, and tells its
// own, and the bridge's that it has.
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
