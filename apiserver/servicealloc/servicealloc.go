// Package servicealloc gives Services their IP families, cluster IPs and node ports, by kube-apiserver's rules.
//
// A write of a Service comes in (Allocate); the Service with what it lacked comes out, together with the writes that
// belong in its transaction: each address and each port is a reservation, a document named after what it reserves,
// which is created and deleted with the Service that holds it. Two servers that pick the same address cannot both
// commit, and there is no allocator whose memory could be wrong. Run repairs reservations that were changed by hand.
//
// families.go chooses families, allocate.go addresses and ports, reservation.go knows the documents. The package reads
// and writes through storage and the small interface Objects; it must not import the server.
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
	"github.com/coxswain-dev/coxswain/storage"
)

// Where addresses and ports come from by default.
var (
	DefaultCIDRs     = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	DefaultNodePorts = net.PortRange{Base: 30000, Size: 2768}
)

// Objects are the API objects, as the server itself reads and writes them.
type Objects interface {
	// Collection opens the stored objects of a kind.
	Collection(res *api.Resource) *storage.Collection
	// Create is the write by which the server creates an object of its own.
	Create(res *api.Resource, obj api.Object) (storage.Write, error)
	// Commit makes writes durable in one transaction, as storage.Store does, and records them in the audit log.
	Commit(ctx context.Context, writes ...storage.Write) (*storage.CommitResult, error)
}

// Options assemble an Allocator. All but CIDRs and NodePorts are required.
type Options struct {
	Store   *storage.Store
	Objects Objects
	// Kinds has Service, IPAddress and ServiceCIDR, or none of them.
	Kinds *api.Snapshot
	// CIDRs are the ranges of cluster IPs: one, or one of each IP family, that of the default first.
	CIDRs     []netip.Prefix
	NodePorts net.PortRange
	Log       *slog.Logger
}

// Allocator reserves addresses and ports. Its methods are safe for concurrent use.
type Allocator struct {
	Options
	service, address, cidr *api.Resource // nil where Services are not served
}

// New checks the ranges and that the registry has all the kinds that Services need, if it has Services.
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

// check refuses ranges that no Service could be served from.
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

// Allocate returns the object with the addresses and ports that it lacked, and the writes that create and delete
// reservations as the object changes from old (nil on create) to obj (nil on delete). They belong in the transaction
// that makes the change; where it is refused because of one of them, another server was quicker, and Allocate may be
// called again with the same obj, which it leaves alone. An object that is not a Service is returned as it is.
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

// First is the first address of the default range, and whether it is free as far as memory knows: by convention it is
// that of the Service "kubernetes".
func (a *Allocator) First() (ip string, free bool) {
	ip = hostsOf(a.CIDRs[0]).at(0).String()
	return ip, !a.reserved(a.addressKey(ip))
}

// decode reads a stored object of a kind that has one version.
func decode[T any](o *storage.Object) (*T, error) {
	obj := new(T)
	if err := encoding.UnmarshalNew(o.JSON, obj); err != nil {
		return nil, fmt.Errorf("decoding the stored %s: %w", o.Key, err)
	}
	return obj, nil
}
