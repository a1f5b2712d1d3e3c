// Package webhook has the admission plugins that call webhooks: other servers that may change or reject writes.
//
// webhook.go reads the webhooks of all configurations of a kind from memory, when one has changed, and finds the ones
// that may match a write. Their rules, selectors and conditions are of the package match. call.go calls one webhook:
// admissionreview encodes the request and checks the answer, apiserver/webhook has the client, calls the log.
// mutating.go and validating.go are the two plugins: the first calls webhooks one after the other, the second all at
// once. A call without a usable answer is left to the webhook's failurePolicy.
//
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/apiserver/admission/admissionreview"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/admission/match"
	"github.com/coxswain-dev/coxswain/apiserver/webhook"
)

// hook is one webhook. It is immutable.
type hook struct {
	// uid identifies the webhook: a configuration may have several webhooks with one name.
	uid, configuration, name string
	match                    match.Matcher
	conditions               match.Conditions
	ignores                  bool // failurePolicy: Ignore
	again                    bool // reinvocationPolicy: IfNeeded
	// sideEffects is the error for a dry run; nil if the webhook has no side effects.
	sideEffects error
	timeout     time.Duration // 0 for none
	target      webhook.Target
	version     string // of the AdmissionReview
	versionErr  error
}

// hooks are the webhooks of one kind of configuration, read from memory when a configuration has changed.
type hooks struct {
	cluster     match.Cluster
	kind        schema.GroupResource
	read        func(api.Object) []admissionv1.MutatingWebhook // has every field of both kinds
	of          calls.Type
	client      *webhook.Client
	credentials *webhook.Credentials
	log         *calls.Log

	current atomic.Pointer[hookSet]
	mu      sync.Mutex // held while the next set is made
}

type hookSet struct {
	changed int64 // Cluster.Changed of the objects of this set
	list    []*hook
	known   map[match.Source][]*hook

	mu    sync.RWMutex
	byKey map[matchKey][]ranked
}

// matchKey is the part of a request that webhook rules match on, except the version.
type matchKey struct {
	resource    schema.GroupResource
	subresource string
	operation   match.Operation
	namespaced  bool
}

// maxMatchKeys limits the cached match keys.
const maxMatchKeys = 4096

// ranked is a webhook and its index among all.
type ranked struct {
	*hook
	index int
}

// about returns the webhooks with rules that may match a request. The result is cached for each match key.
func (s *hookSet) about(a *match.Attributes) []ranked {
	key := matchKey{a.GroupResource(), a.Subresource, a.Operation, a.Namespace != ""}
	s.mu.RLock()
	list, cached := s.byKey[key]
	s.mu.RUnlock()
	if cached {
		return list
	}
	for i, h := range s.list {
		if slices.ContainsFunc(h.match.ResourceRules, func(r admissionv1.NamedRuleWithOperations) bool {
			return match.Fits(&r, a)
		}) {
			list = append(list, ranked{h, i})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil || len(s.byKey) >= maxMatchKeys {
		s.byKey = map[matchKey][]ranked{}
	}
	s.byKey[key] = list
	return list
}

// Options are the dependencies of the two plugins.
type Options struct {
	Cluster match.Cluster
	// Client calls the webhooks. Without it, a request that matches a webhook fails.
	Client *webhook.Client
	// Log records the calls.
	Log *calls.Log
	// Config is the plugin's WebhookAdmissionConfiguration as JSON; empty if there is none.
	Config json.RawMessage
}

// newHooks returns the webhooks of one kind of configuration, with the plugin's own configuration.
func newHooks(o Options, plural string, of calls.Type,
	read func(api.Object) []admissionv1.MutatingWebhook) (*hooks, error) {
	h := &hooks{cluster: o.Cluster, kind: schema.GroupResource{Group: admissionv1.GroupName, Resource: plural},
		read: read, of: of, client: o.Client, log: o.Log}
	var config struct {
		APIVersion     string `json:"apiVersion"`
		Kind           string `json:"kind"`
		KubeConfigFile string `json:"kubeConfigFile"`
	}
	if len(o.Config) > 0 {
		if err := json.Unmarshal(o.Config, &config); err != nil {
			return nil, err
		}
	}
	if config.KubeConfigFile == "" {
		return h, nil
	}
	if config.APIVersion != "apiserver.config.k8s.io/v1" || config.Kind != "WebhookAdmissionConfiguration" {
		return nil, fmt.Errorf("its configuration is %s %q, not apiserver.config.k8s.io/v1 "+
			"WebhookAdmissionConfiguration", config.APIVersion, config.Kind)
	}
	if !path.IsAbs(config.KubeConfigFile) {
		return nil, fmt.Errorf("kubeConfigFile: %q must be an absolute file path", config.KubeConfigFile)
	}
	var err error
	h.credentials, err = webhook.ReadCredentials(config.KubeConfigFile)
	return h, err
}

// Idle reports whether there are no webhooks. It costs a lookup.
func (h *hooks) Idle() bool { return h.cluster.Changed(h.kind) == 0 }

// about returns the webhooks that may have to be called for a request, in order.
func (h *hooks) about(ctx context.Context, a *match.Attributes) ([]ranked, error) {
	changed := h.cluster.Changed(h.kind)
	if changed == 0 || exemptFromWebhooks(a.GroupResource()) {
		return nil, nil
	}
	set := h.current.Load()
	if set == nil || set.changed != changed {
		var err error
		if set, err = h.refresh(ctx); err != nil {
			return nil, err
		}
	}
	return set.about(a), nil
}

// exemptFromWebhooks reports whether webhooks are not called for a resource: the configuration of admission, so
// that a bad one can be removed, and reviews, because every request's authorization may depend on them.
func exemptFromWebhooks(resource schema.GroupResource) bool {
	return resource.Group == admissionv1.GroupName && strings.HasSuffix(resource.Resource, "webhookconfigurations") ||
		match.Exempt(resource)
}

func (h *hooks) refresh(ctx context.Context) (*hookSet, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// The number is recorded before the objects are read, so that changes made meanwhile cause another refresh.
	set := &hookSet{changed: h.cluster.Changed(h.kind), known: map[match.Source][]*hook{}}
	old := h.current.Load()
	if old != nil && old.changed == set.changed {
		return old, nil
	}
	configurations, err := h.cluster.List(ctx, h.kind, "", false)
	if err != nil {
		return nil, err
	}
	configurations = slices.Clone(configurations)
	slices.SortFunc(configurations, func(a, b api.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	for _, obj := range configurations {
		key := match.SourceOf(obj)
		var compiledHooks []*hook
		compiled := false
		if old != nil {
			compiledHooks, compiled = old.known[key]
		}
		if !compiled {
			compiledHooks = h.compile(obj.GetName(), h.read(obj))
		}
		set.known[key] = compiledHooks
		set.list = append(set.list, compiledHooks...)
	}
	h.current.Store(set)
	return set, nil
}

// compile returns the webhooks of one configuration. A webhook without rules is never called.
func (h *hooks) compile(configuration string, specs []admissionv1.MutatingWebhook) []*hook {
	var list []*hook
	repeated := map[string]int{}
	for i := range specs {
		spec := &specs[i]
		uid := fmt.Sprintf("%s/%s/%d", configuration, spec.Name, repeated[spec.Name])
		repeated[spec.Name]++
		if len(spec.Rules) > 0 {
			list = append(list, h.hook(uid, configuration, spec))
		}
	}
	return list
}

func (h *hooks) hook(uid, configuration string, spec *admissionv1.MutatingWebhook) *hook {
	resources := admissionv1.MatchResources{NamespaceSelector: spec.NamespaceSelector,
		ObjectSelector: spec.ObjectSelector, MatchPolicy: spec.MatchPolicy}
	for _, r := range spec.Rules {
		resources.ResourceRules = append(resources.ResourceRules,
			admissionv1.NamedRuleWithOperations{RuleWithOperations: r})
	}
	made := &hook{
		uid: uid, configuration: configuration, name: spec.Name, match: match.New(&resources),
		again: spec.ReinvocationPolicy != nil &&
			*spec.ReinvocationPolicy == admissionv1.IfNeededReinvocationPolicy,
		ignores:    spec.FailurePolicy != nil && *spec.FailurePolicy == admissionv1.Ignore,
		conditions: match.Conditions{Name: spec.Name, Of: "webhook", Kind: h.of, Log: h.log},
	}
	made.target = target(&spec.ClientConfig)
	made.target.Credentials = h.credentials
	made.version, made.versionErr = admissionreview.Version(spec.AdmissionReviewVersions)
	switch {
	case spec.SideEffects == nil:
		made.sideEffects = callFailure(spec.Name, apierrors.NewBadRequest("Webhook SideEffects is nil"),
			"Webhook SideEffects is nil")
	case *spec.SideEffects != admissionv1.SideEffectClassNone &&
		*spec.SideEffects != admissionv1.SideEffectClassNoneOnDryRun:
		made.sideEffects = apierrors.NewBadRequest(
			fmt.Sprintf("admission webhook %q does not support dry run", spec.Name))
	}
	if spec.TimeoutSeconds != nil {
		made.timeout = time.Duration(*spec.TimeoutSeconds) * time.Second
	}
	if len(spec.MatchConditions) > 0 {
		compiler := cel.NewCompiler(false)
		for _, c := range spec.MatchConditions {
			made.conditions.List = append(made.conditions.List, compiler.Compile(strings.TrimSpace(c.Expression),
				cel.Bool, cel.Declarations{Authorizer: true, Stored: true}))
		}
	}
	return made
}

// target returns the server that a webhook names. Its path is cleaned as Kubernetes' client cleans it.
func target(c *admissionv1.WebhookClientConfig) webhook.Target {
	server := webhook.Target{UserAgent: "kube-apiserver-admission", CABundle: c.CABundle}
	if s := c.Service; s != nil {
		server.Service = &webhook.Service{Namespace: s.Namespace, Name: s.Name, Path: "/"}
		if s.Path != nil {
			server.Service.Path = (&url.URL{Path: path.Join("/", *s.Path)}).EscapedPath()
		}
		if s.Port != nil {
			server.Service.Port = *s.Port
		}
		return server
	}
	if c.URL == nil {
		return server
	}
	server.URL = *c.URL
	if u, err := url.Parse(*c.URL); err == nil {
		server.URL = (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: path.Join("/", u.Path)}).String()
	}
	return server
}

// concerns reports whether a webhook must be called for a request, and the resource and kind that it receives.
func (h *hook) concerns(ctx context.Context, q *match.Request) (match.Matched, bool, error) {
	in, ok, err := h.match.Matches(ctx, q)
	if err != nil {
		return match.Matched{}, false, statusError(err)
	}
	if !ok || len(h.conditions.List) == 0 {
		return in, ok, nil
	}
	ok, err = h.conditions.Meet(ctx, q, cel.NewEvaluator(q.Bindings(ctx, in), nil), h.ignores)
	if err != nil {
		return match.Matched{}, false, apierrors.NewForbidden(q.GroupResource(), q.Name, err)
	}
	return in, ok, nil
}

// statusError returns an error unchanged if it is a Status, and an internal error for others.
func statusError(err error) error {
	if _, ok := err.(apierrors.APIStatus); ok {
		return err
	}
	return apierrors.NewInternalError(err)
}
