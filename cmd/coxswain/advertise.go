package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/controlplane"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/listener"
)

// The Service kubernetes points to an address that is not loopback. A server that listens on loopback only, as by
// default, therefore also listens on such an address, for connections of this machine only. If its pods are programs
// with a network of their own, it is the machine's address in that network, for the pods as well.

// onLoopback reports whether the server listens on loopback only, and on the address of its endpoint only because of
// that.
func (f *serverFlags) onLoopback() bool {
	ip, err := netip.ParseAddr(f.bindAddress)
	return err == nil && ip.IsLoopback() && f.advertise == nil
}

// listen opens the server's listeners.
func (f *serverFlags) listen() (*listener.Group, error) {
	ln, err := listen("secure-port", net.JoinHostPort(f.bindAddress, strconv.Itoa(f.securePort)))
	if err != nil {
		return nil, err
	}
	group := listener.NewGroup(ln)
	host := controlplane.HostAddress()
	if !f.onLoopback() || f.advertiseLater || !host.IsValid() {
		return group, nil
	}
	address := netip.AddrPortFrom(host, uint16(ln.Addr().(*net.TCPAddr).Port)).String()
	own, err := listener.Local(address)
	if err != nil {
		slog.Warn("the endpoint of the Service kubernetes does not answer", "address", address, "err", err)
		return group, nil
	}
	group.Add(own)
	return group, nil
}

// hostsCertificate is a certificate of the server's own CA, to which hosts can be added. It is safe for concurrent use.
type hostsCertificate struct {
	ca      *pki.CA
	current atomic.Pointer[pki.Certificate]

	mu    sync.Mutex // guards hosts
	hosts []string
}

func newHostsCertificate(ca *pki.CA, hosts ...string) (*hostsCertificate, error) {
	c := &hostsCertificate{ca: ca}
	return c, c.add(hosts...)
}

// add makes the certificate valid for further hosts.
func (c *hostsCertificate) add(hosts ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.hosts, hosts))))
	cert, err := c.ca.Serving(all...)
	if err != nil {
		return err
	}
	c.hosts = all
	c.current.Store(&cert)
	return nil
}

// Current implements pki.Certificate.
func (c *hostsCertificate) Current() (*tls.Certificate, error) { return (*c.current.Load()).Current() }

// podEndpoint serves the pods of this machine at an address in their network.
type podEndpoint struct {
	server    *apiserver.Server
	listeners *listener.Group
	cert      *hostsCertificate // nil if the server has a certificate of files

	address netip.AddrPort // where it listens
	device  int            // the number of the device with the address
	own     net.Listener
}

// serve makes the server listen on an address of the machine, for pods behind the device with that address and for this
// machine, and points the Service kubernetes to it. It may be called again.
func (e *podEndpoint) serve(ctx context.Context, ip netip.Addr) error {
	device, err := listener.DeviceOf(ip)
	if err != nil {
		return err
	}
	address := netip.AddrPortFrom(ip, uint16(e.listeners.Addr().(*net.TCPAddr).Port))
	if address == e.address && device == e.device {
		return nil
	}
	if e.own != nil {
		_ = e.own.Close()
		e.own = nil
	}
	if e.cert != nil {
		if err := e.cert.add(ip.String()); err != nil {
			return fmt.Errorf("issue a certificate for %s: %w", ip, err)
		}
	}
	if e.own, err = listener.Local(address.String(), device); err != nil {
		return fmt.Errorf("listen for pods: %w", err)
	}
	e.address, e.device = address, device
	e.listeners.Add(e.own)
	e.server.Advertise(ctx, ip)
	return nil
}
