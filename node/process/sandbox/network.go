//go:build linux

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Router connects pods: network/router has one.
type Router interface {
	Namespace() *os.File
	ConnectPod(pod *os.File, addresses ...netip.Addr) error
}

// RouterOf is the network namespace of the router that one of these pods is connected to: shims hold on to it, so that
// it is there for the next agent. It is nil where there is none.
func RouterOf(pods []*Pod) *os.File {
	for _, p := range pods {
		if own, namespace, err := p.network(context.Background(), nil); err == nil {
			_ = own.Close()
			if namespace != nil {
				return namespace
			}
		}
	}
	return nil
}

// Connect connects a pod to a router, if it is not connected yet. The pod's shim then holds the router open as well.
func (p *Pod) Connect(ctx context.Context, r Router) error {
	ip, err := netip.ParseAddr(p.IP)
	if err != nil {
		return err
	}
	own, known, err := p.network(ctx, r.Namespace())
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	if known != nil {
		_ = known.Close()
	}
	return r.ConnectPod(own, ip)
}

// Connected reports whether the pod was connected to a router before.
func (p *Pod) Connected() bool {
	own, known, err := p.network(context.Background(), nil)
	if err != nil {
		return false
	}
	_ = own.Close()
	if known != nil {
		_ = known.Close()
	}
	return known != nil
}

// network exchanges namespaces with the shim: it gets the router's to hold, if there is one, and returns its own, and
// the router's that it has.
func (p *Pod) network(ctx context.Context, router *os.File) (own, known *os.File, err error) {
	var with []*os.File
	if router != nil {
		with = append(with, router)
	}
	conn, _, files, err := ask(ctx, p.Dir, &request{Op: opNetwork}, with...)
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
		if s.router != nil {
			_ = s.router.Close()
		}
		s.router = passed[0]
	}
	if s.router == nil {
		return send(conn, &response{Files: []string{"own"}}, own)
	}
	return send(conn, &response{Files: []string{"own", "router"}}, own, s.router)
}

// loopback brings lo up in a new network namespace, and gives it the pod's address: until the pod is connected that is
// where its containers find each other.
func loopback(ip string) error {
	address, err := netip.ParseAddr(ip)
	if err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	only := &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(address.BitLen(), address.BitLen())}
	if err := netlink.AddrReplace(lo, &netlink.Addr{IPNet: only, Flags: unix.IFA_F_NODAD}); err != nil {
		return fmt.Errorf("address %s: %w", address, err)
	}
	return nil
}
