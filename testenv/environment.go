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

// Environment is a control plane that runs. Its methods are safe for concurrent use.
type Environment struct {
	// Config has an administrator's rights. It must not be changed; rest.CopyConfig makes another.
	Config *rest.Config
	// Webhooks is where the operator serves its webhooks, with WithWebhooks; nil without.
	Webhooks *WebhookServer

	options options
	ctx     context.Context // ends with the environment, and carries client-go's log
	users   *users
	server  *server // nil where OrExternal has chosen another
	traffic *traffic
	stop    func() error

	mu     sync.Mutex
	folder string // of files for tools, made when it is first needed
}

// StartEnvironment starts a control plane for a test. It returns when the API server serves, the definitions are
// established and the Nodes are there; controllers and scheduler come up meanwhile. When the test ends, everything is
// stopped, and its data is gone; if it has failed, its log gets a Report.
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

// NewEnvironment is StartEnvironment for where there is no test: a TestMain, the setup of a Ginkgo suite, an example.
// The caller has to Stop it, and may ask it for a Report when something has failed.
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

// newOptions are the defaults, changed by opts.
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

// startServer starts the environment's own API server. end is for when nobody needs it any more.
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
		_ = e.server.stop() // unless it is stopped already
		e.server.close()
	}, nil
}

// install brings in what the options say that there is from the beginning.
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

// Stop ends the environment, and returns when nothing is left of it. It returns why parts ended before, if any did.
// Further calls return the same.
func (e *Environment) Stop() error { return e.stop() }

// files makes the folder for files that tools need.
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
		_ = os.RemoveAll(e.folder) // it is below the system's folder for what is temporary
		e.folder = ""
	}
}

// Start is StartEnvironment for a test that needs nothing but a configuration with administrator's rights.
func Start(t testing.TB, opts ...Option) *rest.Config {
	t.Helper()
	return StartEnvironment(t, opts...).Config
}

// New is NewEnvironment for a caller that needs nothing but a configuration with administrator's rights, and how to
// stop.
func New(opts ...Option) (config *rest.Config, stop func() error, err error) {
	e, err := NewEnvironment(opts...)
	if err != nil {
		return nil, nil, err
	}
	return e.Config, e.Stop, nil
}
