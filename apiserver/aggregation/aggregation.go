// Package aggregation is the part of an API server that other API servers extend (kube-aggregator). An APIService says
// that a group and version of the API is another server's: requests for it are authenticated and authorized here and
// passed on to a Service, under the user's name and by this server's certificate.
//
// The APIServices in memory become the current set (services.go). A request that its path leads to another server
// (attributes.go) goes there (proxy.go) over connections that only its APIService uses (link.go), with headers that
// say who the user is (identity.go). What other servers say about themselves (document.go) becomes part of this
// server's discovery and OpenAPI (discovery.go, openapi.go). Every server asks them whether they are there and writes
// it into the status of their APIServices (availability.go), and keeps APIServices of what it serves itself (local.go).
//
// Such a server may be slow, broken or hostile. Nothing here waits for it but the requests that are for it; sizes and
// times are bounded. Where no APIService names a Service, a request costs one atomic load.
//
// The server itself must not be imported.
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
	"github.com/coxswain-dev/coxswain/apiserver/endpoints"
	"github.com/coxswain-dev/coxswain/apiserver/x509metrics"
	"github.com/coxswain-dev/coxswain/storage"
)

// Objects are the API objects as the server itself reads and writes them.
type Objects interface {
	// Collection opens the stored objects of a kind.
	Collection(res *api.Resource) *storage.Collection
	// Create is the write that creates an object.
	Create(res *api.Resource, obj api.Object) (storage.Write, error)
	// Update is the write, if one is needed, by which a stored object becomes what change makes of it.
	Update(res *api.Resource, stored *storage.Object, subresource string, change func(api.Object)) (
		[]storage.Write, error)
	// Commit makes writes durable in one transaction, as storage.Store does, and records them in the audit log.
	Commit(ctx context.Context, writes ...storage.Write) (*storage.CommitResult, error)
}

// Options assemble an Aggregation. All fields but ProxyClient and Dial are required.
type Options struct {
	Store    *storage.Store
	Registry *api.Registry
	Objects  Objects
	// Services are where requests go.
	Services endpoints.Objects
	// Settle waits until the registry has the kinds of all definitions in memory.
	Settle func(ctx context.Context) error
	// ProxyClient is the certificate by which other servers recognize this one; nil shows none.
	ProxyClient func() (*tls.Certificate, error)
	// Dial opens connections; nil dials them.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Drain is done when the server stops: streams end.
	Drain context.Context
	// MaxBody is how many bytes a request may have.
	MaxBody int64
	Clock   clock.PassiveClock
	Log     *slog.Logger
}

// Aggregation is the aggregator of a server. Its methods are safe for concurrent use.
type Aggregation struct {
	Options
	res *api.Resource
	// self is the server's name in the Via header of what it passes on.
	self string

	current atomic.Pointer[set]
	mu      sync.Mutex // held while the set changes
	known   map[string]*registered
	changed chan struct{} // closed when known changes

	checks      chan struct{} // holds a token for each check under way
	fetches     chan struct{} // and for each document that is being fetched
	unavailable *unavailability
	refused     *x509metrics.Counters
	merged      mergedDocument

	// running is what requests have started, until background is done.
	running    sync.WaitGroup
	background context.Context
	end        context.CancelFunc
}

const dialTimeout = 10 * time.Second

// New reads the APIServices that memory has. It returns nil if the kind is not served.
func New(ctx context.Context, o Options) (*Aggregation, error) {
	res := o.Registry.Snapshot().Kind(apiregistrationv1.SchemeGroupVersion.WithKind("APIService"))
	if res == nil {
		return nil, nil
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // which never fails
	a := &Aggregation{Options: o, res: res, self: "coxswain-" + hex.EncodeToString(id[:]),
		known: map[string]*registered{}, changed: make(chan struct{}), checks: make(chan struct{}, checksAtOnce),
		fetches: make(chan struct{}, fetchesAtOnce), unavailable: newUnavailability(),
		refused: x509metrics.New("kube_aggregator")}
	a.background, a.end = context.WithCancel(context.Background())
	_, err := a.refresh(ctx)
	return a, err
}

// Run follows the APIServices until ctx ends.
func (a *Aggregation) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { a.follow(ctx) })
	running.Go(func() { a.keepLocal(ctx) })
	running.Go(func() { a.keepAvailable(ctx) })
	running.Wait()
	a.close()
	a.running.Wait()
}
