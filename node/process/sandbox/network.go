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

// Router connects pods; network/router implements it.
type Router interface {
	Namespace() *os.File
	ConnectPod(pod *os.File, addresses ...netip.Addr) error
}

// RouterOf returns the network namespace of the router that one of these pods is connected to; nil if there is none.
// Shims keep the namespace open, so that the next agent finds it.
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

// Connect connects a pod to a router, unless it is connected already. The pod's shim then also keeps the router's
// network namespace open.
func (p *Pod) Connect(ctx context.Context, r Router) error {
	ip, err := netip.ParseAddr(p.IP)
	if err != nil {
		return err
	}
	own, previous, err := p.network(ctx, r.Namespace())
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	if previous != nil {
		_ = previous.Close()
	}
	return r.ConnectPod(own, ip)
}

// Connected reports whether the pod was connected to a router before.
func (p *Pod) Connected() bool {
	own, previous, err := p.network(context.Background(), nil)
	if err != nil {
		return false
	}
	_ = own.Close()
	if previous != nil {
		_ = previous.Close()
	}
	return previous != nil
}

// network exchanges namespaces with the shim. It passes the router's to the shim, if router is not nil, and returns the
// pod's own and the router's that the shim keeps open, which the caller must close.
func (p *Pod) network(ctx context.Context, router *os.File) (own, kept *os.File, err error) {
	var passed []*os.File
	if router != nil {
		passed = append(passed, router)
	}
	conn, _, files, err := ask(ctx, p.Dir, &request{Op: opNetwork}, passed...)
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

// loopback brings lo up in a new network namespace and assigns the pod's address to it. Until the pod is connected,
// its containers reach each other there.
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
