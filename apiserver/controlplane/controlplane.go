// Package controlplane maintains the objects that an API server writes about itself and for the cluster, as
// kube-apiserver's package of that name does: the system namespaces and priority classes (bootstrap.go), the roles
// and bindings of every cluster (policy.go), the Service "kubernetes" and its endpoints (kubernetes_service.go), a
// Lease that shows the server to clients (identity.go), the data that extension servers need to authenticate requests
// (trust.go), the objects of flow control (flow_objects.go, flow_upkeep.go) and the result of type-checking admission
// policies (typecheck.go, typecheck_upkeep.go).
//
// A server calls Bootstrap before it serves, Join when it listens, Run while it serves and Leave when it ends. Each
// write names the revision that it was made from: if several servers see the same need, one of them writes. API
// objects are read and written through a loopback.Client; the server itself must not be imported.
package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/storage"
)

// Services reserve addresses (servicealloc.Allocator).
type Services interface {
	Allocate(ctx context.Context, obj, old api.Object) (api.Object, []storage.Write, error)
	First() (ip string, free bool)
}

// Options assemble a ControlPlane. All but AdvertiseAddress, ClientCAs and RequestHeader are required.
type Options struct {
	Store    *storage.Store
	Registry *api.Registry
	Objects  loopback.Client
	Services Services
	// ServiceCIDRs are shown as the ServiceCIDR "kubernetes".
	ServiceCIDRs []netip.Prefix
	// AdvertiseAddress is the address that the Service "kubernetes" points to (--advertise-address). With
	// AdvertiseLater there is none before Advertise is called.
	AdvertiseAddress netip.Addr
	AdvertiseLater   bool
	// ClientCAs and RequestHeader are published for extension servers; nil where the server has none.
	ClientCAs     authn.CAs
	RequestHeader *authn.RequestHeader
	// TrackTokens enables recording the use of tokens in Secrets.
	TrackTokens bool
	Clock       clock.WithTicker
	Log         *slog.Logger
}

// ControlPlane keeps the objects of one server.
type ControlPlane struct {
	Options
	// The kinds around Services, nil where Services are not served.
	service, endpoints, endpointSlice, cidr *api.Resource
	identity                                serverIdentity
	policyWritten                           chan struct{} // writePolicy closes it

	publishing sync.Mutex     // held while the Service is published; guards the fields below
	address    netip.AddrPort // the server's, for its clients; invalid if it has none
	former     netip.AddrPort // an address that must be removed from the Service; invalid if there is none
}

// New checks that the registry has all the kinds that the Service "kubernetes" needs, if it has Services.
func New(o Options) (*ControlPlane, error) {
	kinds := o.Registry.Snapshot()
	c := &ControlPlane{
		Options:       o,
		service:       kinds.Kind(corev1.SchemeGroupVersion.WithKind("Service")),
		endpoints:     kinds.Kind(corev1.SchemeGroupVersion.WithKind("Endpoints")),
		endpointSlice: kinds.Kind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice")),
		cidr:          kinds.Kind(networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")),
		policyWritten: make(chan struct{}),
	}
	if c.service != nil && (c.endpoints == nil || c.endpointSlice == nil || c.cidr == nil) {
		return nil, errors.New("apiserver: the registry has Service, but not all of Endpoints, EndpointSlice and " +
			"ServiceCIDR")
	}
	return c, nil
}

// PolicyWritten returns a channel that is closed when the roles and bindings that every cluster has are stored, or Run
// has ended. They are in force before: Run writes them while the server serves.
func (c *ControlPlane) PolicyWritten() <-chan struct{} { return c.policyWritten }

// Run maintains all objects, except the objects of flow control, until ctx ends.
func (c *ControlPlane) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { c.keepPublished(ctx) })
	running.Go(func() { c.writePolicy(ctx) })
	if res := c.kind(corev1.SchemeGroupVersion.WithKind("ConfigMap")); res != nil && c.trusts() {
		running.Go(func() { c.keepTrust(ctx, res) })
	}
	if res := c.kind(admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy")); res != nil {
		running.Go(func() { c.keepTypeChecks(ctx, res) })
	}
	running.Wait()
}

func (c *ControlPlane) now() metav1.Time { return metav1.NewTime(c.Clock.Now().UTC()).Rfc3339Copy() }
