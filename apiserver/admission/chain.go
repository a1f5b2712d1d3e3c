package admission

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/webhook"
	"github.com/coxswain-dev/coxswain/internal/series"
)

// Options select and configure plugins.
type Options struct {
	// Enable lists plugins to run besides the default ones, Disable default ones not to run
	// (--enable-admission-plugins, --disable-admission-plugins).
	Enable, Disable []string
	// Config configures plugins (--admission-control-config-file); see ReadConfig.
	Config Config
	// NotReadySeconds and UnreachableSeconds are how long pods without a toleration of their own stay
	// on a node that is not ready or not reachable; 0 means DefaultTolerationSeconds, 300.
	NotReadySeconds, UnreachableSeconds int64
	// Webhooks calls admission webhooks. Without it, a request that matches a webhook fails.
	Webhooks *webhook.Client
	// Clock provides the time for quotas.
	Clock clock.PassiveClock
	// TokenAudiences are the audiences of a service account token if its request names none: the API server's own.
	TokenAudiences []string
}

// Names returns the plugins that the options select, in the order of the table. An unknown name, or one
// that is both enabled and disabled, is an error.
func (o Options) Names() ([]string, error) {
	for _, name := range slices.Concat(o.Enable, o.Disable) {
		if !slices.ContainsFunc(Table, func(r Registration) bool { return r.Name == name }) {
			return nil, fmt.Errorf("admission plugin %q is unknown; there are %s", name, strings.Join(allNames(), ", "))
		}
		if slices.Contains(o.Enable, name) && slices.Contains(o.Disable, name) {
			return nil, fmt.Errorf("admission plugin %q is both enabled and disabled", name)
		}
	}
	var names []string
	for _, r := range Table {
		if slices.Contains(o.Enable, r.Name) || r.Default && !slices.Contains(o.Disable, r.Name) {
			names = append(names, r.Name)
		}
	}
	return names, nil
}

func allNames() []string {
	names := make([]string, len(Table))
	for i := range Table {
		names[i] = Table[i].Name
	}
	return names
}

// Chain holds the enabled plugins in order. It is safe for concurrent use.
type Chain struct {
	// mutating and validating contain, for each resource that a rule names, the steps that may apply to it, so that
	// a write runs no plugin that does not cover its resource. wideMutating and wideValidating are the steps for
	// all other resources.
	mutating, validating         map[schema.GroupResource][]*step
	wideMutating, wideValidating []*step
	quota                        *resourceQuota
	steps                        []*step
	seconds, whole               *prometheus.HistogramVec
	// mutated and validated observe the total duration of all plugins.
	mutated, validated *step
	quotaStep          *step
	metrics            *pluginMetrics
	calls              *calls.Log
}

// step is one plugin in the chain.
type step struct {
	name  string
	rules []Rule
	Mutator
	Validator
	// idle reports whether the plugin has no work for any write; nil if it may always have some.
	idle func() bool
	// took observes the duration of calls: [operation][rejected]. observer makes these observers when they are
	// first needed; most never are.
	took     [4][2]atomic.Pointer[prometheus.Observer]
	observer func(operation, rejected string) prometheus.Observer
}

// operations are the indices of step.took.
var operations = []Operation{Create, Update, Delete, Connect}

// NewChain builds the plugins that the options select.
func NewChain(cluster Cluster, o Options) (*Chain, error) {
	names, err := o.Names()
	if err != nil {
		return nil, err
	}
	c := &Chain{
		mutating:   map[schema.GroupResource][]*step{},
		validating: map[schema.GroupResource][]*step{},
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_admission_controller_admission_duration_seconds",
			Help: "Admission controller latency histogram in seconds, identified by name and broken out for " +
				"each operation and API resource and type (validate or admit).",
			Buckets: []float64{0.005, 0.025, 0.1, 1},
		}, []string{"name", "type", "operation", "rejected"}),
	}
	c.whole = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "apiserver_admission_step_admission_duration_seconds",
		Help: "Admission sub-step latency histogram in seconds, broken out for each operation and API resource and " +
			"step type (validate or admit).",
		Buckets: []float64{0.005, 0.025, 0.1, 1},
	}, []string{"type", "operation", "rejected"})
	c.mutated, c.validated = c.phase("admit"), c.phase("validate")
	env := &Env{Cluster: cluster, Options: o, Metrics: newPluginMetrics(), Calls: calls.NewLog()}
	for _, r := range Table {
		if !slices.Contains(names, r.Name) {
			continue
		}
		plugin, err := r.New(env)
		if err != nil {
			return nil, fmt.Errorf("admission plugin %s: %w", r.Name, err)
		}
		c.add(r, plugin)
	}
	c.metrics, c.calls = env.Metrics, env.Calls
	c.dispatch()
	return c, nil
}

func (c *Chain) add(r Registration, plugin Plugin) {
	if m, ok := plugin.(Mutator); ok {
		c.steps = append(c.steps, c.step(r, "admit", plugin, &step{Mutator: m}))
	}
	if v, ok := plugin.(Validator); ok {
		c.steps = append(c.steps, c.step(r, "validate", plugin, &step{Validator: v}))
	}
	if q, ok := plugin.(*resourceQuota); ok {
		c.quota, c.quotaStep = q, c.step(r, "validate", plugin, &step{})
	}
}

func (c *Chain) step(r Registration, kind string, plugin Plugin, s *step) *step {
	s.name, s.rules = r.Name, r.On
	if i, ok := plugin.(interface{ Idle() bool }); ok {
		s.idle = i.Idle
	}
	s.observer = func(operation, rejected string) prometheus.Observer {
		return c.seconds.WithLabelValues(r.Name, kind, operation, rejected)
	}
	return s
}

// phase returns a step that stands for a whole phase.
func (c *Chain) phase(kind string) *step {
	return &step{observer: func(operation, rejected string) prometheus.Observer {
		return c.whole.WithLabelValues(kind, operation, rejected)
	}}
}

// dispatch groups the steps by the resources that they cover.
func (c *Chain) dispatch() {
	for _, s := range c.steps {
		for _, rule := range s.rules {
			if rule.Resource != anyResource {
				c.mutating[rule.Resource], c.validating[rule.Resource] = nil, nil
			}
		}
	}
	for _, s := range c.steps {
		into, wide := c.validating, &c.wideValidating
		if s.Mutator != nil {
			into, wide = c.mutating, &c.wideMutating
		}
		if s.about(anyResource) {
			*wide = append(*wide, s)
		}
		for resource := range into {
			if s.about(resource) || s.about(anyResource) {
				into[resource] = append(into[resource], s)
			}
		}
	}
}

func (s *step) about(resource schema.GroupResource) bool {
	return slices.ContainsFunc(s.rules, func(r Rule) bool { return r.Resource == resource })
}

// wants reports whether the plugin's line in the table covers the write.
func (s *step) wants(a *Attributes) bool {
	for i := range s.rules {
		if s.rules[i].covers(a) {
			return true
		}
	}
	return false
}

// Mutate lets every mutating plugin change the object, until one returns an error. If a policy or a webhook has
// changed the object, all plugins are called a second time, because their first results may no longer hold.
func (c *Chain) Mutate(ctx context.Context, a *Attributes) error {
	start := time.Now()
	err := c.mutateAll(ctx, a)
	c.mutated.observe(a, start, err)
	return err
}

func (c *Chain) mutateAll(ctx context.Context, a *Attributes) error {
	if err := c.mutate(ctx, a); err != nil || !a.Reinvocation.Rewritten {
		return err
	}
	a.Reinvocation.Again = true
	return c.mutate(ctx, a)
}

func (c *Chain) mutate(ctx context.Context, a *Attributes) error {
	steps, ok := c.mutating[a.GroupResource()]
	if !ok {
		steps = c.wideMutating
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, s := range steps {
		if !s.wants(a) || s.idle != nil && s.idle() {
			continue
		}
		start := time.Now()
		err := s.Mutate(ctx, a)
		s.observe(a, start, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// Validate lets every validating plugin reject the write, until one does.
func (c *Chain) Validate(ctx context.Context, a *Attributes) error {
	start := time.Now()
	err := c.validate(ctx, a)
	c.validated.observe(a, start, err)
	return err
}

func (c *Chain) validate(ctx context.Context, a *Attributes) error {
	steps, ok := c.validating[a.GroupResource()]
	if !ok {
		steps = c.wideValidating
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, s := range steps {
		if !s.wants(a) || s.idle != nil && s.idle() {
			continue
		}
		start := time.Now()
		err := s.Validate(ctx, a)
		s.observe(a, start, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// Claim charges a write to the quotas that it uses, and rejects it if one of them would be exceeded. It returns nil
// if the write uses none. The caller must call Settle on the Claim.
func (c *Chain) Claim(ctx context.Context, a *Attributes) (*Claim, error) {
	if c.quota == nil || !c.quota.tracks(a) {
		return nil, nil
	}
	start := time.Now()
	claim, err := c.quota.claim(ctx, a)
	c.quotaStep.observe(a, start, err)
	return claim, err
}

func (s *step) observe(a *Attributes, start time.Time, err error) {
	rejected := 0
	if err != nil {
		rejected = 1
	}
	slot := &s.took[slices.Index(operations, a.Operation)][rejected]
	took := slot.Load()
	if took == nil {
		made := s.observer(string(a.Operation), strconv.FormatBool(err != nil)) // the observer is the same each time
		took = &made
		slot.Store(took)
	}
	(*took).Observe(time.Since(start).Seconds())
}

// Describe implements prometheus.Collector.
func (c *Chain) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect sends the durations of the plugins that were called.
func (c *Chain) Collect(ch chan<- prometheus.Metric) {
	series.Used(c.seconds).Collect(ch)
	series.Used(c.whole).Collect(ch)
	c.metrics.podSecurity.Collect(ch)
	c.calls.Collect(ch)
}

// Calls returns the log of the calls of admission webhooks.
func (c *Chain) Calls() *calls.Log { return c.calls }
