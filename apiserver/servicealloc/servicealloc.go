// Package servicealloc assigns IP families, cluster IPs and node ports to Services, by kube-apiserver's rules.
//
// Allocate takes a written Service. It returns the Service with the missing values filled in, and the writes that
// belong in the same transaction. Each address and port is reserved by a document named after it, which is created
// and deleted together with the Service. Two servers that pick the same address therefore cannot both commit, and
// no allocator state in memory can become wrong. Run repairs reservations that were changed by hand.
//
// families.go chooses families, allocate.go addresses and ports; reservation.go reads and writes the documents. The
// package uses storage and a loopback.Client. It must not import package apiserver.
package servicealloc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/net"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/storage"
)

// The default ranges of addresses and ports.
var (
	DefaultCIDRs     = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	DefaultNodePorts = net.PortRange{Base: 30000, Size: 2768}
)

// Options configures an Allocator. All fields except CIDRs and NodePorts are required.
type Options struct {
	Store   *storage.Store
	Objects loopback.Client
	// Kinds contains Service, IPAddress and ServiceCIDR, or none of them.
	Kinds *api.Snapshot
	// CIDRs contains one range of cluster IPs, or one per IP family with the default first.
	CIDRs     []netip.Prefix
	NodePorts net.PortRange
	Log       *slog.Logger
}

// Allocator reserves addresses and ports. Its methods are safe for concurrent use.
type Allocator struct {
	Options
	service, address, cidr *api.Resource // nil if Services are not served
}

// New validates the ranges, and checks that the registry contains the kinds that Services need.
func New(o Options) (*Allocator, error) {
	if len(o.CIDRs) == 0 {
		o.CIDRs = DefaultCIDRs
	}
	if o.NodePorts.Size == 0 {
		o.NodePorts = DefaultNodePorts
	}
	if err := check(o.CIDRs, o.NodePorts); err != nil {
		return nil, err
	}
	a := &Allocator{
		Options: o,
		service: o.Kinds.Kind(corev1.SchemeGroupVersion.WithKind("Service")),
		address: o.Kinds.Kind(networkingv1.SchemeGroupVersion.WithKind("IPAddress")),
		cidr:    o.Kinds.Kind(networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")),
	}
	if a.service != nil && (a.address == nil || a.cidr == nil) {
		return nil, errors.New("apiserver: the registry has Service, but not both of IPAddress and ServiceCIDR")
	}
	return a, nil
}

// check validates the ranges.
func check(cidrs []netip.Prefix, ports net.PortRange) error {
	if len(cidrs) > 2 || len(cidrs) == 2 && cidrs[0].Addr().Is4() == cidrs[1].Addr().Is4() {
		return errors.New("--service-cluster-ip-range must hold one CIDR, or one of each IP family")
	}
	for _, c := range cidrs {
		if c.Addr().BitLen()-c.Bits() < 3 {
			return fmt.Errorf("--service-cluster-ip-range: %s has less than 8 addresses", c)
		}
	}
	if ports.Size <= 0 || ports.Base < 1 || ports.Base+ports.Size-1 > 65535 {
		return fmt.Errorf("--service-node-port-range: %s is not a range of ports", ports.String())
	}
	return nil
}

// Allocate returns obj with missing addresses and ports filled in, and the writes that update the reservations when
// old is replaced by obj. old is nil on create and obj is nil on delete. The writes belong in the transaction that
// makes the change. If the transaction is refused because of one of them, another server took the address or port
// first. The caller may then call Allocate again with the same obj, which it does not modify. An object of a
// different kind is returned unchanged.
func (a *Allocator) Allocate(ctx context.Context, obj, old api.Object) (api.Object, []storage.Write, error) {
	before, _ := old.(*corev1.Service)
	after, _ := obj.(*corev1.Service)
	if before == nil && after == nil || a.service == nil {
		return obj, nil, nil
	}
	have := a.keysOf(before)
	if after == nil {
		writes, err := a.writes(ctx, before, have, nil)
		return obj, writes, err
	}
	after = after.DeepCopy()
	if err := a.allocate(ctx, after, before, have); err != nil {
		return nil, nil, err
	}
	writes, err := a.writes(ctx, after, have, a.keysOf(after))
	return after, writes, err
}

// First returns the first address of the default range and whether it is free according to memory. By convention it
// belongs to the Service "kubernetes".
func (a *Allocator) First() (ip string, free bool) {
	ip = hostsOf(a.CIDRs[0]).at(0).String()
	return ip, !a.reserved(a.addressKey(ip))
}

// decode decodes a stored object of a kind with a single version.
func decode[T any](o *storage.Object) (*T, error) {
	obj := new(T)
	if err := encoding.UnmarshalNew(o.JSON, obj); err != nil {
		return nil, fmt.Errorf("decoding the stored %s: %w", o.Key, err)
	}
	return obj, nil
}
