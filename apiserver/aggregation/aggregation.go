// Package aggregation lets other API servers extend this one, as kube-aggregator does. An APIService declares that
// another server serves a group and version of the API. This server authenticates and authorizes the requests for
// that group and version, then proxies them to a Service, with its own certificate and the user's name in headers.
//
// A watch keeps an immutable set of the APIServices in memory (services.go). A request with a path that belongs to
// another server (attributes.go) is proxied (proxy.go) over connections that belong to its APIService alone
// (link.go), with headers that name the user (identity.go). The discovery and OpenAPI documents of other servers
// are fetched and cached (document.go), then merged into this server's own (discovery.go, openapi.go). Every server
// checks whether the others are reachable and writes the result into the status of their APIServices
// (availability.go). It also maintains APIServices for the groups it serves itself (local.go).
//
// Another server may be slow, broken or hostile. Only the requests addressed to it wait for it, and sizes and times
// are bounded. When no APIService names a Service, the cost is one atomic load per request.
//
// This package must not import package apiserver.
package aggregation

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/loopback"
	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
	"github.com/coxswain-dev/coxswain/apiserver/x509metrics"
	"github.com/coxswain-dev/coxswain/storage"
)

// Options configures an Aggregation. All fields except ProxyClient and Dial are required.
type Options struct {
	Store    *storage.Store
	Registry *api.Registry
	Objects  loopback.Client
	// Services finds the endpoints that requests are sent to.
	Services serviceresolver.Reader
	// Settle waits until the registry contains the kinds of all CustomResourceDefinitions in memory.
	Settle func(ctx context.Context) error
	// ProxyClient returns the client certificate that this server presents to the others; nil presents none.
	ProxyClient func() (*tls.Certificate, error)
	// Dial opens connections; nil uses a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Drain is done when the server starts to stop: streams end then.
	Drain context.Context
	// MaxBody limits the body of a request, in bytes.
	MaxBody int64
	Clock   clock.PassiveClock
	Log     *slog.Logger
}

// Aggregation implements the aggregator of a server. Its methods are safe for concurrent use.
type Aggregation struct {
	Options
	res *api.Resource
	// self identifies this server in the Via header of the requests it proxies.
	self string

	// current is the set that requests use. It is replaced as a whole and nil if it would be empty.
	current atomic.Pointer[set]
	mu      sync.Mutex // guards known and changed, and is held while current is replaced
	known   map[string]*registered
	changed chan struct{} // closed and replaced when known changes

	checks      chan struct{} // a semaphore: one token for each check in progress
	fetches     chan struct{} // a semaphore: one token for each document being fetched
	unavailable *unavailability
	refused     *x509metrics.Counters
	merged      mergedDocument

	// running counts the goroutines that requests started. They end when background is done.
	running    sync.WaitGroup
	background context.Context
	end        context.CancelFunc
}

const dialTimeout = 10 * time.Second

// New reads the APIServices in memory. It returns nil if the server does not serve the kind.
func New(ctx context.Context, o Options) (*Aggregation, error) {
	res := o.Registry.Snapshot().Kind(apiregistrationv1.SchemeGroupVersion.WithKind("APIService"))
	if res == nil {
		return nil, nil
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	a := &Aggregation{Options: o, res: res, self: "coxswain-" + hex.EncodeToString(id[:]),
		known: map[string]*registered{}, changed: make(chan struct{}), checks: make(chan struct{}, checksAtOnce),
		fetches: make(chan struct{}, fetchesAtOnce), unavailable: newUnavailability(),
		refused: x509metrics.New("kube_aggregator")}
	a.background, a.end = context.WithCancel(context.Background())
	_, err := a.refresh(ctx)
	return a, err
}

// Run follows the APIServices until ctx ends, then closes all connections.
func (a *Aggregation) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { a.follow(ctx) })
	running.Go(func() { a.keepLocal(ctx) })
	running.Go(func() { a.keepAvailable(ctx) })
	running.Wait()
	a.close()
	a.running.Wait()
}
