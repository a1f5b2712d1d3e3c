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

// Option changes what StartEnvironment starts.
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
	external       string // a kubeconfig; "" for a server of the test's own
	debug          *controllers.Debug
	clock          clock.WithTicker
	manual         *Clock // the same, if it is moved by hand
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

// WithNodes sets how many simulated Nodes there are; the default is 1.
func WithNodes(n int) Option { return func(o *options) { o.nodes = n } }

// WithControllers chooses controllers as --controllers does: "*", "deployment", "-namespace".
// Without an argument none runs.
func WithControllers(names ...string) Option { return func(o *options) { o.controllers = names } }

// WithoutScheduler leaves pods unscheduled.
func WithoutScheduler() Option { return func(o *options) { o.scheduler = false } }

// APIServerOnly starts the API server and nothing else.
func APIServerOnly() Option {
	return func(o *options) { o.controllers, o.scheduler, o.nodes = nil, false, 0 }
}

// undone are the admission plugins that only do good beside a controller: pods wait for a
// ServiceAccount that it makes, Nodes for a taint that it takes away.
var undone = map[string]string{
	"ServiceAccount":        "serviceaccount-controller",
	"TaintNodesByCondition": "node-lifecycle-controller",
}

// WithAdmission chooses and configures admission plugins, as --enable-admission-plugins and its
// family do. The default is kube-apiserver's, without those of undone whose controller does not run.
func WithAdmission(a admission.Options) Option { return func(o *options) { o.admission = a } }

// WithAudit has the API server record requests, as --audit-policy-file and its family do (see audit.Defaults). A fork
// of a snapshot records nothing.
func WithAudit(a audit.Options) Option { return func(o *options) { o.audit = a } }

// WithComponents is where the API server asks controller-manager and scheduler, by these names, whether they
// are well (host:port); those that the environment has are in the same process, and the default of others is
// where they serve unless told otherwise.
func WithComponents(addresses map[string]string) Option {
	return func(o *options) { o.components = addresses }
}

// WithLog sends the control plane's logs to a logger; the default drops them.
func WithLog(l *slog.Logger) Option { return func(o *options) { o.log = l } }

// logged is a context by which client-go logs to the control plane's logger in place of stderr.
func (o *options) logged() context.Context {
	return klog.NewContext(context.Background(), logr.FromSlogHandler(o.log.Handler()))
}
