package admission

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
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/cel"
)

// Admission policies are rules that are objects: what a write must satisfy, or what is changed
// of it, in expressions. A policy takes effect through its bindings, which say where, and with
// which parameters. policymatch.go says whether a policy is about a request, policyparams.go
// finds the parameters, policyeval.go what the expressions may look at; validatingpolicy.go and
// mutatingpolicy.go are the two plugins.
// https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/

// boundPolicy is one policy, compiled, with its bindings. It does not change. T is what the
// plugin's own kind has besides.
type boundPolicy[T any] struct {
	name    string
	ignores bool // failurePolicy: Ignore
	param   *admissionv1.ParamKind
	match   matcher
	// conditions are in their order; variables by name, nil without any.
	conditions []*cel.Expression
	variables  map[string]*cel.Expression
	rules      T
	bindings   []*binding
}

type binding struct {
	name, policy string
	ref          *admissionv1.ParamRef
	params       labels.Selector // of ref
	match        *matcher
	actions      []admissionv1.ValidationAction
	err          error // why it cannot be used
}

// policies are those there are of one kind that have a binding, read from memory and compiled when one
// of them has changed.
type policies[T any] struct {
	cluster        Cluster
	kind, bindings schema.GroupResource
	compile        func(api.Object) *boundPolicy[T]
	bind           func(api.Object) *binding

	current atomic.Pointer[policySet[T]]
	mu      sync.Mutex // held by who makes the next set
}

type policySet[T any] struct {
	policies, bindings int64 // Cluster.Changed of what it was made from
	list               []*boundPolicy[T]
	compiled           map[compiled]*boundPolicy[T]
}

// compiled names what a policy was compiled from.
type compiled struct {
	uid        types.UID
	generation int64
}

// now are the policies there are. Without any it costs two look-ups.
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
	// Noted before the objects are read: what changes meanwhile is read again next time.
	set := &policySet[T]{policies: p.cluster.Changed(p.kind), bindings: p.cluster.Changed(p.bindings), compiled: map[compiled]*boundPolicy[T]{}}
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
		key := compiled{obj.GetUID(), obj.GetGeneration()}
		var known *boundPolicy[T]
		if old != nil {
			known = old.compiled[key]
		}
		if known == nil {
			known = p.compile(obj)
		}
		with := *known
		with.bindings = byPolicy[with.name]
		set.compiled[key] = &with
		set.list = append(set.list, &with)
	}
	p.current.Store(set)
	return set.list, nil
}

// newBinding is what the two kinds of binding have in common.
func newBinding(name, policy string, ref *admissionv1.ParamRef, match *admissionv1.MatchResources) *binding {
	b := &binding{name: name, policy: policy, ref: ref}
	if match != nil {
		m := newMatcher(match)
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

// compilePolicy compiles what they share, and returns the compiler for the rest. What does not
// compile is an error when it is evaluated: what is stored may come from another release.
func compilePolicy[T any](name string, c common) (*boundPolicy[T], *cel.Compiler, cel.Declarations) {
	declared := cel.Declarations{Params: c.param != nil, Authorizer: true, Stored: true}
	compiler := cel.NewCompiler(len(c.variables) > 0)
	p := &boundPolicy[T]{
		name: name, param: c.param, match: newMatcher(c.match),
		ignores: c.failure != nil && *c.failure == admissionv1.Ignore,
	}
	for _, v := range c.variables {
		compiler.Define(v.Name, v.Expression, declared)
	}
	p.variables = compiler.Variables()
	for _, condition := range c.conditions {
		p.conditions = append(p.conditions, compiler.Compile(strings.TrimSpace(condition.Expression), cel.Bool, declared))
	}
	return p, compiler, declared
}

// exempt are the resources that policies have no say in: their own, so that a bad one can be
// taken away again, and questions that change nothing.
func exempt(resource schema.GroupResource) bool {
	switch resource.Group {
	case policyGroup:
		return strings.HasSuffix(resource.Resource, "admissionpolicies") || strings.HasSuffix(resource.Resource, "admissionpolicybindings")
	case "authentication.k8s.io", "authorization.k8s.io":
		return true
	}
	return false
}

func configured(binding *binding, err error) error {
	if binding == nil {
		return fmt.Errorf("failed to configure policy: %w", err)
	}
	return fmt.Errorf("failed to configure binding: %w", err)
}
