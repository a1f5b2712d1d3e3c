package testenv

import (
	"context"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/internal/client/manifests"
	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
)

// Option configures StartEnvironment.
type Option func(*options)

type options struct {
	controllers    []string
	scheduler      bool
	nodes          int
	log            *slog.Logger
	admission      admission.Options
	audit          audit.Options
	components     map[string]string
	authentication authn.Options
	external       string // a kubeconfig; "" for the test's own server
	debug          *controllers.Debug
	clock          clock.WithTicker
	manual         *Clock // the same as clock, if it is moved by hand
	parts          *quiescence.Group
	etcd           bool
	crds           []manifests.Source
	converted      []string // names of definitions
	webhooks       bool
	webhookConfigs []manifests.Source
	pods           func(*corev1.Pod, *PodScript)
	readDelay      time.Duration
	writeDelay     time.Duration
	fork           *Snapshot
}

// WithNodes sets the number of simulated Nodes; the default is 1.
func WithNodes(n int) Option { return func(o *options) { o.nodes = n } }

// WithControllers selects controllers as --controllers does: "*", "deployment", "-namespace". Without an argument
// none runs.
func WithControllers(names ...string) Option { return func(o *options) { o.controllers = names } }

// WithoutScheduler leaves pods unscheduled.
func WithoutScheduler() Option { return func(o *options) { o.scheduler = false } }

// APIServerOnly starts the API server without the other parts.
func APIServerOnly() Option {
	return func(o *options) { o.controllers, o.scheduler, o.nodes = nil, false, 0 }
}

// undone are the admission plugins that need a controller: pods wait for a ServiceAccount that it makes, Nodes for
// the removal of a taint.
var undone = map[string]string{
	"ServiceAccount":        "serviceaccount-controller",
	"TaintNodesByCondition": "node-lifecycle-controller",
}

// WithAdmission selects and configures admission plugins, as --enable-admission-plugins and related flags do. The
// default is kube-apiserver's, without the plugins of undone whose controller does not run.
func WithAdmission(a admission.Options) Option { return func(o *options) { o.admission = a } }

// WithAudit makes the API server record requests, as --audit-policy-file and related flags do (see audit.Defaults).
// A fork of a snapshot records none.
func WithAudit(a audit.Options) Option { return func(o *options) { o.audit = a } }

// WithComponents sets the addresses (host:port) where the API server checks the health of the components
// "controller-manager" and "scheduler". Components of the environment are checked in the same process; the default
// of others is their usual address.
func WithComponents(addresses map[string]string) Option {
	return func(o *options) { o.components = addresses }
}

// WithLog sends the control plane's logs to a logger; the default drops them.
func WithLog(l *slog.Logger) Option { return func(o *options) { o.log = l } }

// logged returns a context that makes client-go log to the control plane's logger instead of stderr.
func (o *options) logged() context.Context {
	return klog.NewContext(context.Background(), logr.FromSlogHandler(o.log.Handler()))
}
