package testenv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/apiserver/componentstatus"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
)

// Environment is a running control plane. Its methods are safe for concurrent use.
type Environment struct {
	// Config has an administrator's rights. It must not be changed; rest.CopyConfig makes another.
	Config *rest.Config
	// Webhooks is the address of the operator's webhooks, with WithWebhooks; nil without.
	Webhooks *WebhookServer

	options options
	ctx     context.Context // ends with the environment, and carries client-go's log
	users   *users
	server  *server // nil if OrExternal has chosen another one
	traffic *traffic
	stop    func() error

	mu     sync.Mutex
	folder string // for the files of tools; made when it is first needed
}

// StartEnvironment starts a control plane for a test. It returns when the API server serves, the definitions are
// established and the Nodes exist; controllers and scheduler start meanwhile. When the test ends, everything is
// stopped and its data is deleted. If the test has failed, a Report is written to its log.
func StartEnvironment(t testing.TB, opts ...Option) *Environment {
	t.Helper()
	e, err := NewEnvironment(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(e.Report(context.Background()))
		}
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// NewEnvironment is StartEnvironment without a test: for a TestMain, the setup of a Ginkgo suite, or an example.
// The caller must Stop the environment, and may request a Report after a failure.
func NewEnvironment(opts ...Option) (*Environment, error) {
	o := newOptions(opts)
	ctx, cancel := context.WithCancel(o.logged())
	e := &Environment{options: o, ctx: ctx, traffic: &traffic{}}
	begin := e.startServer
	if o.external != "" {
		begin = e.takeExternal
	}
	closeServer, err := begin()
	if err == nil {
		e.Config, err = e.users.config(administrator, "system:masters")
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("testenv: %w", err)
	}
	stopParts, removeRest := startParts(e.users, o), func() {}
	if o.manual != nil && e.server != nil {
		removeRest = o.manual.AddRest(e.rest)
	}
	e.stop = sync.OnceValue(func() error {
		removeRest()
		err := stopParts()
		cancel()
		closeServer()
		authorities.Delete(e.users.host)
		if e.Webhooks != nil {
			e.Webhooks.Close()
		}
		e.removeFiles()
		return err
	})
	authorities.Store(e.users.host, e.users)
	if err := e.install(); err != nil {
		return nil, errors.Join(fmt.Errorf("testenv: %w", err), e.Stop())
	}
	return e, nil
}

// newOptions returns the defaults, changed by opts.
func newOptions(opts []Option) options {
	o := options{
		controllers: []string{"*"}, scheduler: true, nodes: 1, log: slog.New(slog.DiscardHandler),
		debug: &controllers.Debug{}, clock: clock.RealClock{}, parts: &quiescence.Group{},
	}
	for _, opt := range opts {
		opt(&o)
	}
	if o.components == nil {
		o.components = maps.Clone(componentstatus.DefaultAddresses)
		if len(o.controllers) > 0 {
			o.components["controller-manager"] = componentstatus.InProcess
		}
		if o.scheduler {
			o.components["scheduler"] = componentstatus.InProcess
		}
	}
	return o
}

// startServer starts the environment's own API server. The caller must call end when no part needs the server any
// more.
func (e *Environment) startServer() (end func(), err error) {
	if e.server, err = newServer(e.ctx, e.options, e.traffic); err != nil {
		return nil, err
	}
	if err = e.server.start(e.ctx); err == nil {
		e.users, err = e.server.users()
	}
	if err != nil {
		_ = e.server.stop()
		e.server.close()
		return nil, err
	}
	return func() {
		_ = e.server.stop() // it may be stopped already
		e.server.close()
	}, nil
}

// install creates the objects that the options list: webhooks and definitions.
func (e *Environment) install() (err error) {
	if e.options.webhooks {
		if e.Webhooks, err = e.newWebhookServer(); err != nil {
			return err
		}
	}
	if err := e.installCRDs(); err != nil {
		return err
	}
	return e.installWebhooks()
}

// Stop ends the environment, and returns when all its goroutines and files are gone. It returns the errors of parts
// that ended early. Further calls return the same.
func (e *Environment) Stop() error { return e.stop() }

// files returns the folder for files that tools need, and creates it first if necessary.
func (e *Environment) files() (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.folder == "" {
		folder, err := os.MkdirTemp("", "coxswain-testenv-")
		if err != nil {
			return "", fmt.Errorf("testenv: %w", err)
		}
		e.folder = folder
	}
	return e.folder, nil
}

func (e *Environment) removeFiles() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.folder != "" {
		_ = os.RemoveAll(e.folder) // if this fails, the folder remains in the system's folder for temporary files
		e.folder = ""
	}
}

// Start is StartEnvironment for a test that needs only a configuration with administrator's rights.
func Start(t testing.TB, opts ...Option) *rest.Config {
	t.Helper()
	return StartEnvironment(t, opts...).Config
}

// New is NewEnvironment for a caller that needs only a configuration with administrator's rights, and a function
// that stops the environment.
func New(opts ...Option) (config *rest.Config, stop func() error, err error) {
	e, err := NewEnvironment(opts...)
	if err != nil {
		return nil, nil, err
	}
	return e.Config, e.Stop, nil
}
