package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/controlplane"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
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
		slog.Warn("cannot serve the endpoint of the Service kubernetes", "address", address, "err", err)
		return group, nil
	}
	group.Add(own)
	return group, nil
}

// podEndpoint serves the pods of this machine at an address in their network.
type podEndpoint struct {
	server    *apiserver.Server
	listeners *listener.Group
	cert      *certs.HostsCertificate // nil if the server has a certificate of files

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
		if err := e.cert.Add(ip.String()); err != nil {
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
