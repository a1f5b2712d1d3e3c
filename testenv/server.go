package testenv

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/memory"
	"github.com/coxswain-dev/coxswain/testenv/inprocess"
)

// server is an environment's API server, with the state that survives StopAPIServer: its data, its address, and its
// certificates and keys.
type server struct {
	options
	ca             *pki.CA
	authentication authn.Options
	proxyClient    pki.Certificate
	kubelet        tls.Certificate
	serving        pki.Certificate
	port           *port
	direct         inprocess.Server // for the environment's own parts
	backend        storage.Backend
	memory         *memory.Backend // nil WithEtcd
	traffic        *traffic
	undo           []func()

	// mu is held while the server starts and stops; it guards the fields below.
	mu    sync.Mutex
	store *storage.Store    // nil while it is stopped
	api   *apiserver.Server // nil while it is stopped
	halt  func() error
}

// newServer makes the state of a server, and does not start it.
func newServer(ctx context.Context, o options, t *traffic) (s *server, err error) {
	s = &server{options: o, traffic: t}
	s.direct.ConnContext = func(ctx context.Context) context.Context { return authn.WithConnection(ctx, nil) }
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.ca, err = o.authority(); err != nil {
		return s, err
	}
	if s.authentication, err = o.credentials(s.ca); err != nil {
		return s, err
	}
	if s.proxyClient, err = o.believe(&s.authentication); err != nil {
		return s, err
	}
	if s.kubelet, err = kubeletClient(s.ca); err != nil {
		return s, err
	}
	if s.serving, err = s.ca.Serving("127.0.0.1", "localhost"); err != nil {
		return s, err
	}
	if s.port, err = newPort(); err != nil {
		return s, err
	}
	s.undo = append(s.undo, s.port.close)
	if s.backend, err = o.openBackend(ctx); err != nil {
		return s, err
	}
	s.memory, _ = s.backend.(*memory.Backend)
	if o.readDelay > 0 || o.writeDelay > 0 {
		s.backend = slowBackend{s.backend, o.readDelay, o.writeDelay}
	}
	s.undo = append(s.undo, func() { _ = s.backend.Close() })
	return s, nil
}

// close releases the state of a server that has been stopped.
func (s *server) close() {
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
}

// users returns the users of the server.
func (s *server) users() (*users, error) {
	settings, err := s.signing(s.ca, s.authentication.ServiceAccounts)
	return &users{ca: s.ca, host: "https://" + s.port.address(), direct: &s.direct, settings: settings}, err
}

// shutdownGrace limits how long a part's request may take to be answered when the API server stops.
const shutdownGrace = 5 * time.Second

var (
	errRuns    = errors.New("the API server runs")
	errStopped = errors.New("the API server is stopped")
)

// start serves until stop is called. ctx limits the server's life, and carries the log of client-go.
func (s *server) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store != nil {
		return errRuns
	}
	store, err := storage.Open(ctx, s.backend, storage.Options{Log: s.log, Synchronous: true})
	if err != nil {
		return err
	}
	if err := s.serve(ctx, store); err != nil {
		return errors.Join(err, store.Close())
	}
	s.store = store
	return nil
}

func (s *server) serve(ctx context.Context, store *storage.Store) error {
	auditor, err := audit.Open(s.audit, s.log)
	if err != nil {
		return err
	}
	server, err := s.newAPIServer(ctx, store, auditor)
	if err != nil {
		return errors.Join(err, auditor.Close())
	}
	ln, err := s.port.listen()
	if err != nil {
		return errors.Join(err, auditor.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	s.traffic.begin(ctx)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(ctx, ln, apiserver.TLSConfig(s.serving)) })
	endDirect := s.direct.Serve(server.Handler())
	s.halt = func() error {
		cancel()
		endDirect(shutdownGrace)
		serving.Wait()
		return auditor.Close()
	}
	<-server.PolicyWritten()
	s.api = server
	return nil
}

func (s *server) newAPIServer(ctx context.Context, store *storage.Store, auditor *audit.Auditor) (*apiserver.Server,
	error) {
	return apiserver.New(ctx, apiserver.Options{
		Store: store, Registry: api.NewRegistry(append(builtin.KindsBy(s.clock), builtin.Metrics()...)...),
		Log: s.log, Clock: s.clock,
		Authentication: s.authentication, ProxyClient: s.proxyClient.Current,
		Admission:  s.plugins(),
		Components: s.components,
		Kubelet:    proxy.KubeletOptions{Certificate: &s.kubelet},
		Debug:      map[string]http.Handler{controllers.DebugPath: s.debug},
		Middleware: s.traffic.around,
		Audit:      auditor,
	})
}

// stop ends the server in an orderly way: open watches end, and requests under way are answered.
func (s *server) stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return errStopped
	}
	err := errors.Join(s.halt(), s.store.Close())
	s.store, s.api = nil, nil
	return err
}

// compact deletes all history up to now.
func (s *server) compact(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return errStopped
	}
	// Write once more, so that the latest revision is newer than any that a client can have seen.
	note, err := s.backend.Note(ctx)
	if err != nil {
		return err
	}
	if _, err := s.backend.ReplaceNote(ctx, note, note.Value); err != nil {
		return err
	}
	now, err := s.store.Revision(ctx)
	if err != nil {
		return err
	}
	return s.store.Compact(ctx, now)
}

// plugins returns the options of the admission plugins.
func (s *server) plugins() admission.Options {
	a := s.admission
	for plugin, undoes := range undone {
		if !controllers.Enabled(s.controllers, undoes) && !slices.Contains(a.Enable, plugin) {
			a.Disable = append(slices.Clip(a.Disable), plugin)
		}
	}
	return a
}

// kubeletClient returns the client certificate that the API server presents to kubelets.
func kubeletClient(ca *pki.CA) (tls.Certificate, error) {
	cert, key, err := ca.Client(authz.KubeletClient)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}
