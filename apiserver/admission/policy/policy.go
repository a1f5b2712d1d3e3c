// Package policy has the admission plugins for ValidatingAdmissionPolicies and MutatingAdmissionPolicies: objects with
// expressions in CEL that a write must satisfy, or that change it.
//
// A policy takes effect through its bindings, which select writes and parameters. policy.go reads the policies and
// bindings of a kind from memory and compiles them when one of them has changed. The package match decides whether a
// policy applies to a write, and params.go finds the parameters. validating.go and mutating.go are the two plugins:
// they evaluate the expressions for each binding and each parameter, and turn failures into one answer. A failure of
// a policy itself, such as an error in an expression, is left to its failurePolicy.
//
// https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/
package policy

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/admission/match"
)

// boundPolicy is one compiled policy with its bindings. It is immutable. T contains the fields of the plugin's own
// kind.
type boundPolicy[T any] struct {
	name       string
	ignores    bool // failurePolicy: Ignore
	param      *admissionv1.ParamKind
	match      match.Matcher
	conditions match.Conditions
	// variables are by name; nil if there are none.
	variables map[string]*cel.Expression
	rules     T
	bindings  []*binding
}

type binding struct {
	name, policy string
	ref          *admissionv1.ParamRef
	params       labels.Selector // the selector of ref
	match        *match.Matcher
	actions      []admissionv1.ValidationAction
	err          error // the reason why the binding cannot be used
}

// policies holds the policies of one kind that have a binding. They are read from memory and compiled when one of
// them has changed.
type policies[T any] struct {
	cluster        match.Cluster
	kind, bindings schema.GroupResource
	compile        func(api.Object) *boundPolicy[T]
	bind           func(api.Object) *binding

	current atomic.Pointer[policySet[T]]
	mu      sync.Mutex // held while the next set is made
}

type policySet[T any] struct {
	policies, bindings int64 // Cluster.Changed of the objects of this set
	list               []*boundPolicy[T]
	compiled           map[match.Source]*boundPolicy[T]
}

// now returns the present policies. If there are none, it costs two lookups.
func (p *policies[T]) now(ctx context.Context) ([]*boundPolicy[T], error) {
	changed := p.cluster.Changed(p.kind)
	if changed == 0 {
		return nil, nil
	}
	bound := p.cluster.Changed(p.bindings)
	if bound == 0 {
		return nil, nil
	}
	if set := p.current.Load(); set != nil && set.policies == changed && set.bindings == bound {
		return set.list, nil
	}
	return p.refresh(ctx)
}

func (p *policies[T]) refresh(ctx context.Context) ([]*boundPolicy[T], error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The numbers are recorded before the objects are read, so that changes made meanwhile cause another refresh.
	set := &policySet[T]{policies: p.cluster.Changed(p.kind), bindings: p.cluster.Changed(p.bindings),
		compiled: map[match.Source]*boundPolicy[T]{}}
	old := p.current.Load()
	if old != nil && old.policies == set.policies && old.bindings == set.bindings {
		return old.list, nil
	}
	objects, err := p.cluster.List(ctx, p.kind, "", false)
	if err != nil {
		return nil, err
	}
	bindings, err := p.cluster.List(ctx, p.bindings, "", false)
	if err != nil {
		return nil, err
	}
	byPolicy := map[string][]*binding{}
	for _, obj := range bindings {
		b := p.bind(obj)
		byPolicy[b.policy] = append(byPolicy[b.policy], b)
	}
	for _, obj := range objects {
		if len(byPolicy[obj.GetName()]) == 0 {
			continue
		}
		key := match.SourceOf(obj)
		var known *boundPolicy[T]
		if old != nil {
			known = old.compiled[key]
		}
		if known == nil {
			known = p.compile(obj)
		}
		bound := *known
		bound.bindings = byPolicy[bound.name]
		set.compiled[key] = &bound
		set.list = append(set.list, &bound)
	}
	p.current.Store(set)
	return set.list, nil
}

// newBinding returns a binding with the fields that the two kinds share.
func newBinding(name, policy string, ref *admissionv1.ParamRef, resources *admissionv1.MatchResources) *binding {
	b := &binding{name: name, policy: policy, ref: ref}
	if resources != nil {
		m := match.New(resources)
		b.match = &m
	}
	if ref != nil && ref.Selector != nil {
		b.params, b.err = metav1.LabelSelectorAsSelector(ref.Selector)
	}
	return b
}

// common are the fields that the two kinds of policy share.
type common struct {
	failure    *admissionv1.FailurePolicyType
	param      *admissionv1.ParamKind
	match      *admissionv1.MatchResources
	conditions []admissionv1.MatchCondition
	variables  []admissionv1.Variable
}

// compilePolicy compiles the shared fields, and returns the compiler for the rest. An expression that does not
// compile is an error when it is evaluated, since another release may have stored the policy.
func compilePolicy[T any](name string, c common, log *calls.Log, kind calls.Type) (*boundPolicy[T], *cel.Compiler,
	cel.Declarations) {
	declared := cel.Declarations{Params: c.param != nil, Authorizer: true, Stored: true}
	compiler := cel.NewCompiler(len(c.variables) > 0)
	p := &boundPolicy[T]{
		name: name, param: c.param, match: match.New(c.match),
		ignores:    c.failure != nil && *c.failure == admissionv1.Ignore,
		conditions: match.Conditions{Name: name, Of: "policy", Kind: kind, Log: log},
	}
	for _, v := range c.variables {
		compiler.Define(v.Name, v.Expression, declared)
	}
	p.variables = compiler.Variables()
	for _, condition := range c.conditions {
		p.conditions.List = append(p.conditions.List, compiler.Compile(strings.TrimSpace(condition.Expression),
			cel.Bool, declared))
	}
	return p, compiler, declared
}

// each calls use for each parameter of each binding that a request matches, until it returns an error. It calls
// misconfigured for a policy or a binding that cannot be evaluated; b is nil for a policy.
func (p *boundPolicy[T]) each(ctx context.Context, r *match.Request, misconfigured func(b *binding, err error),
	use func(*binding, match.Matched, param) error) error {
	in, ok, err := p.match.Matches(ctx, r)
	if err != nil {
		misconfigured(nil, configured(nil, err))
	}
	if !ok {
		return nil
	}
	for _, b := range p.bindings {
		if b.match != nil {
			_, ok, err := b.match.Matches(ctx, r)
			if err != nil {
				misconfigured(b, configured(b, err))
			}
			if !ok {
				continue
			}
		}
		found, err := params(ctx, r, p.param, b)
		if err != nil {
			misconfigured(b, configured(b, err))
			continue
		}
		for _, one := range found {
			if err := use(b, in, one); err != nil {
				return err
			}
		}
	}
	return nil
}

func configured(binding *binding, err error) error {
	if binding == nil {
		return fmt.Errorf("failed to configure policy: %w", err)
	}
	return fmt.Errorf("failed to configure binding: %w", err)
}

// deadline returns an error if the request has ended: that is not the policy's failure.
func deadline(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("evaluating admission policies: %w", err)
	}
	return nil
}

// reasonCode returns the HTTP status for a reason.
func reasonCode(reason metav1.StatusReason) int32 {
	switch reason {
	case metav1.StatusReasonForbidden:
		return 403
	case metav1.StatusReasonUnauthorized:
		return 401
	case metav1.StatusReasonRequestEntityTooLarge:
		return 413
	}
	return 422
}
