package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/configfile"
)

// Options select the authorizers.
type Options struct {
	// Configuration applies at first; nil is Node and RBAC.
	Configuration *Configuration
	// File, if not "", is the file of the configuration, with this Content. It is read again when it changes.
	File    string
	Content []byte
	// Clock decides how long webhooks' answers are cached; nil is the machine's.
	Clock clock.PassiveClock
	// RBAC and Node are used if the configuration has them.
	RBAC *RBAC
	Node *Node
	Log  *slog.Logger
}

// DefaultModes are the types of authorizers if there is no configuration.
var DefaultModes = []string{TypeNode, TypeRBAC}

// Authorizers are the authorizers of the current configuration. They are safe for concurrent use.
type Authorizers struct {
	Options
	metrics *metrics
	inForce atomic.Pointer[Union]
	file    *configfile.Follower // nil if the configuration does not change
	// fixed are the first configuration's types except Webhook. Every later configuration must have the same ones.
	fixed []string
}

// New returns the authorizers of the first configuration.
func New(o Options) (*Authorizers, error) {
	if o.Configuration == nil {
		o.Configuration = Modes(DefaultModes, nil)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	a := &Authorizers{Options: o, metrics: newMetrics()}
	for _, t := range o.Configuration.Types() {
		if t != TypeWebhook {
			a.fixed = append(a.fixed, t)
		}
	}
	union, err := a.union(o.Configuration)
	if err != nil {
		return nil, err
	}
	a.inForce.Store(&union)
	if o.File != "" {
		a.file = configfile.New(configfile.Options{Path: o.File, Name: "authorization", Initial: o.Content,
			Apply: a.apply, Log: o.Log})
	}
	return a, nil
}

// Run follows the file of the configuration, if there is one, until ctx ends.
func (a *Authorizers) Run(ctx context.Context) {
	if a.file != nil {
		a.file.Run(ctx)
	}
}

// Metrics returns the authorizers' metrics.
func (a *Authorizers) Metrics() []prometheus.Collector {
	if a.file == nil {
		return a.metrics.all()
	}
	return append(a.metrics.all(), a.file)
}

// Authorize implements Authorizer.
func (a *Authorizers) Authorize(ctx context.Context, attributes *Attributes) (Decision, string, error) {
	return a.inForce.Load().Authorize(ctx, attributes)
}

// RulesFor implements Lister.
func (a *Authorizers) RulesFor(user *authn.User, namespace string) ([]rbacv1.PolicyRule, bool, error) {
	return a.inForce.Load().RulesFor(user, namespace)
}

// apply applies a changed file. Cached answers of webhooks are dropped.
func (a *Authorizers) apply(_ context.Context, content []byte) error {
	config, err := ParseConfig(content)
	if err != nil {
		return err
	}
	has := config.Types()
	var missing []string
	for _, t := range a.fixed {
		if !slices.Contains(has, t) {
			missing = append(missing, t)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		return fmt.Errorf("missing required types: %v", missing)
	}
	for _, t := range []string{TypeNode, TypeRBAC} {
		if slices.Contains(has, t) && !slices.Contains(a.fixed, t) {
			return fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", t)
		}
	}
	union, err := a.union(config)
	if err != nil {
		return err
	}
	a.inForce.Store(&union)
	return nil
}

// union returns the authorizers of a configuration, in order.
func (a *Authorizers) union(config *Configuration) (Union, error) {
	var union Union
	for _, c := range config.Authorizers {
		var one Authorizer
		switch c.Type {
		case TypeRBAC:
			one = a.RBAC
		case TypeNode:
			one = a.Node
		case TypeAlwaysAllow:
			one = AlwaysAllow{}
		case TypeAlwaysDeny:
			one = AlwaysDeny{}
		case TypeWebhook:
			webhook, err := a.webhook(c.Name, c.Webhook)
			if err != nil {
				return nil, err
			}
			one = webhook
		default:
			return nil, fmt.Errorf("unknown authorization mode %q, want one of %v", c.Type, types)
		}
		union = append(union, a.metrics.counted(c.Type, c.Name, one))
	}
	return union, nil
}

func (a *Authorizers) webhook(name string, c *WebhookConfiguration) (*webhookAuthorizer, error) {
	if c == nil || c.ConnectionInfo.KubeConfigFile == nil || *c.ConnectionInfo.KubeConfigFile == "" {
		return nil, errors.New("authorization mode Webhook needs a webhook: the kubeconfig of its server")
	}
	server, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: *c.ConnectionInfo.KubeConfigFile}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("authorization webhook %s: %w", name, err)
	}
	matches, faults := compileConditions(c.MatchConditions, nil)
	if len(faults) > 0 {
		return nil, fmt.Errorf("authorization webhook %s: %w", name, faults.ToAggregate())
	}
	return newWebhook(webhookOptions{name: name, config: c, server: server, conditions: matches, clock: a.Clock,
		metrics: a.metrics})
}
