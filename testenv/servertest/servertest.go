// Package servertest starts API servers alone, for tests of apiserver and of the packages that it uses: with
// options of their own, several on one store, or on a backend that fails. Package testenv starts whole control
// planes.
package servertest

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/memory"
)

// Server is an API server that serves until its test ends.
type Server struct {
	*apiserver.Server
	// CA has signed the server's certificate, and signs client certificates.
	CA *pki.CA
	// Config is an administrator's.
	Config *rest.Config
	// Stop makes the server stop before its test ends, and does not wait. Ended is closed when the server has
	// stopped.
	Stop  context.CancelFunc
	Ended <-chan struct{}
}

// Start starts a server. Without a Store it has one of its own, and without a Registry it has all built-in kinds.
// It limits the memory of requests, like a server on a machine with little memory. When Start returns, the server
// has written the objects that every cluster has.
func Start(t testing.TB, o apiserver.Options) *Server {
	t.Helper()
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Store == nil {
		o.Store = Store(t, backend(t, o.Clock), storage.Options{})
	}
	if o.Registry == nil {
		o.Registry = api.NewRegistry(builtin.KindsBy(o.Clock)...)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Limits.RequestMemory == 0 {
		o.Limits.RequestMemory = 1 << 30
	}
	ca, err := pki.NewCAByClock("coxswain", o.Clock.Now())
	require.NoError(t, err)
	if o.Authentication.ClientCAs == nil {
		o.Authentication.ClientCAs = authn.FixedCAs(ca.Pool())
	}
	server, err := apiserver.New(t.Context(), o)
	require.NoError(t, err)
	cert, err := ca.Serving("127.0.0.1")
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(ctx, ln, apiserver.TLSConfig(cert))
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	<-server.PolicyWritten()
	admin, key, err := ca.Client("admin", "system:masters")
	require.NoError(t, err)
	return &Server{Server: server, CA: ca, Stop: stop, Ended: ended, Config: &rest.Config{
		Host: "https://" + ln.Addr().String(), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca.PEM(), CertData: admin, KeyData: key},
	}}
}

// Client returns an administrator's client, with connections of its own.
func (s *Server) Client(t testing.TB) *kubernetes.Clientset {
	t.Helper()
	transport, err := rest.HTTPClientFor(s.Config)
	require.NoError(t, err)
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(transport.Transport) })
	client, err := kubernetes.NewForConfigAndClient(s.Config, transport)
	require.NoError(t, err)
	return client
}

// Backend returns a backend in memory for one test.
func Backend(t testing.TB) storage.Backend {
	t.Helper()
	return backend(t, nil)
}

func backend(t testing.TB, c clock.WithTicker) storage.Backend {
	t.Helper()
	b := memory.New(memory.Options{Clock: c})
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// Store opens a store on a backend. Several stores may share one. The store is synchronous.
func Store(t testing.TB, backend storage.Backend, o storage.Options) *storage.Store {
	t.Helper()
	o.Synchronous = true
	store, err := storage.Open(t.Context(), backend, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	return store
}
