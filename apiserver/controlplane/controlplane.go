// Package controlplane is what an API server keeps about itself and for the cluster, as the package of that name of
// kube-apiserver does: the system namespaces and priority classes (bootstrap.go), the roles and bindings of every
// cluster (policy.go), the Service "kubernetes" and what it points to (kubernetes_service.go), a Lease by which
// clients see the server (identity.go), what extension servers need to know to authenticate requests (trust.go),
// the objects of flow control (flow_objects.go, flow_upkeep.go) and the result of type-checking admission policies
// (typecheck.go, typecheck_upkeep.go).
//
// A server calls Bootstrap before it serves, Join when it listens, Run while it serves and Leave when it ends. Each
// write names the revision that it was made from, so that of several servers that see the same need one writes. API
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
	// AdvertiseAddress is where the Service "kubernetes" points to (--advertise-address).
	AdvertiseAddress netip.Addr
	// ClientCAs and RequestHeader are published for extension servers; nil where the server has none.
	ClientCAs     authn.CAs
	RequestHeader *authn.RequestHeader
	// TrackTokens says that the use of tokens in Secrets is recorded.
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
	policyWritten                           chan struct{}
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

// PolicyWritten is closed when the roles and bindings that every cluster has are stored. They hold before: Run writes
// them while the server serves.
func (c *ControlPlane) PolicyWritten() <-chan struct{} { return c.policyWritten }

// Run keeps all but the objects of flow control as they should be until ctx ends, for the server that joined at that
// address.
func (c *ControlPlane) Run(ctx context.Context, at netip.AddrPort) {
	var running sync.WaitGroup
	running.Go(func() { c.keepPublished(ctx, at) })
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
