package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/admission/match"
)

// Mutating changes objects as MutatingAdmissionPolicies specify.
// https://kubernetes.io/docs/reference/access-authn-authz/mutating-admission-policy/
type Mutating struct {
	policies[mutations]
}

// mutations are the expressions of one policy.
type mutations struct {
	list []mutation
	// again means that the policy is evaluated a second time if the object has been changed since.
	again bool
}

type mutation struct {
	*cel.Expression
	kind admissionv1.PatchType
}

// NewMutating returns a plugin that reads its policies from the cluster, and records their evaluation in the log.
func NewMutating(cluster match.Cluster, log *calls.Log) *Mutating {
	return &Mutating{policies[mutations]{
		cluster:  cluster,
		kind:     schema.GroupResource{Group: admissionv1.GroupName, Resource: "mutatingadmissionpolicies"},
		bindings: schema.GroupResource{Group: admissionv1.GroupName, Resource: "mutatingadmissionpolicybindings"},
		compile: func(obj api.Object) *boundPolicy[mutations] {
			return compileMutating(obj.(*admissionv1.MutatingAdmissionPolicy), log)
		},
		bind: func(obj api.Object) *binding {
			spec := obj.(*admissionv1.MutatingAdmissionPolicyBinding).Spec
			return newBinding(obj.GetName(), spec.PolicyName, spec.ParamRef, spec.MatchResources)
		},
	}}
}

func compileMutating(obj *admissionv1.MutatingAdmissionPolicy, log *calls.Log) *boundPolicy[mutations] {
	spec := &obj.Spec
	p, compiler, declared := compilePolicy[mutations](obj.Name,
		common{spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, spec.MatchConditions, spec.Variables}, log,
		calls.Mutating)
	declared.Patch = true
	p.rules.again = spec.ReinvocationPolicy == admissionv1.IfNeededReinvocationPolicy
	for _, m := range spec.Mutations {
		switch {
		case m.PatchType == admissionv1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil:
			p.rules.list = append(p.rules.list,
				mutation{compiler.Compile(m.ApplyConfiguration.Expression, cel.Object, declared), m.PatchType})
		case m.PatchType == admissionv1.PatchTypeJSONPatch && m.JSONPatch != nil:
			p.rules.list = append(p.rules.list,
				mutation{compiler.Compile(m.JSONPatch.Expression, cel.Patches, declared), m.PatchType})
		}
	}
	return p
}

// task is one policy with one binding and one parameter that a request matches.
type task struct {
	policy  *boundPolicy[mutations]
	binding *binding
	in      match.Matched
	param   param
}

// objection is the reason why a policy could not be applied.
type objection struct {
	message string
	reason  metav1.StatusReason
}

// change is one request while the policies change it.
type change struct {
	*match.Request
	tasks      []task
	objections []objection
}

// Mutate implements Mutator.
func (m *Mutating) Mutate(ctx context.Context, a *match.Attributes) error {
	list, err := m.now(ctx)
	if err != nil || len(list) == 0 || match.Exempt(a.GroupResource()) {
		return err
	}
	c := &change{Request: match.NewRequest(a, m.cluster)}
	for _, p := range list {
		c.plan(ctx, p)
	}
	if err := c.run(ctx); err != nil {
		return err
	}
	if err := deadline(ctx); err != nil {
		return err
	}
	return c.refuse()
}

// object adds a reason to reject the request, unless the policy's failures are ignored.
func (c *change) object(p *boundPolicy[mutations], b *binding, reason metav1.StatusReason, err error) {
	if p.ignores {
		return
	}
	message := fmt.Sprintf("policy %q denied request: %s", p.name, err)
	if b != nil {
		message = fmt.Sprintf("policy '%s' with binding '%s' denied request: %s", p.name, b.name, err)
	}
	c.objections = append(c.objections, objection{message, reason})
}

// plan finds the bindings and parameters of a policy that the request matches. It is called before the object is
// changed.
func (c *change) plan(ctx context.Context, p *boundPolicy[mutations]) {
	misconfigured := func(b *binding, err error) { c.object(p, b, "", err) }
	_ = p.each(ctx, c.Request, misconfigured, func(b *binding, in match.Matched, one param) error {
		c.tasks = append(c.tasks, task{p, b, in, one})
		return nil // so each returns no error
	})
}

// run applies the policies in order.
func (c *change) run(ctx context.Context) error {
	if len(c.tasks) == 0 {
		return nil
	}
	namespace, err := c.NamespaceDocument(ctx)
	if err != nil {
		return err
	}
	round := &c.Reinvocation
	round.Policies.Begin(round.Again, c.Object)
	defer func() { round.Policies.End(c.Object) }()
	for _, t := range c.tasks {
		bound := bindings(ctx, c.Request, t.in, t.param)
		if len(t.policy.conditions.List) > 0 {
			ok, err := t.policy.conditions.Meet(ctx, c.Request, cel.NewEvaluator(bound, t.policy.variables), false)
			if err != nil {
				c.object(t.policy, t.binding, metav1.StatusReasonInvalid, err)
			}
			if !ok {
				continue
			}
		}
		key := match.Invocation{Policy: t.policy.name, Binding: t.binding.name, Param: t.param.name()}
		if round.Again && !round.Policies.Stale[key] {
			continue
		}
		if err := c.mutate(ctx, t, namespace); err != nil {
			return err
		}
		if t.policy.rules.again {
			round.Policies.Note(key)
		}
	}
	if round.Rewritten {
		round.Policies.Changed() // another policy may have to be evaluated again after the last change
	}
	return nil
}

// mutate applies the mutations of one policy, each to the result of the previous one.
func (c *change) mutate(ctx context.Context, t task, namespace *cel.Document) error {
	for _, m := range t.policy.rules.list {
		if c.Object == nil {
			return nil
		}
		bound := bindings(ctx, c.Request, t.in, t.param)
		bound.Namespace = namespace
		changed, err := c.apply(ctx, cel.NewEvaluator(bound, t.policy.variables), t, m)
		var status apierrors.APIStatus
		switch {
		case errors.As(err, &status):
			return err
		case err != nil:
			c.object(t.policy, t.binding, metav1.StatusReasonInvalid, err)
		case changed:
			c.Changed()
			c.Reinvocation.Rewritten = true
			c.Reinvocation.Policies.Changed()
		}
	}
	return nil
}

// apply evaluates a mutation and applies its result to the object.
func (c *change) apply(ctx context.Context, e *cel.Evaluator, t task, m mutation) (changed bool, err error) {
	if m.Err != nil {
		return false, m.Err
	}
	budget := int64(cel.PolicyBudget)
	result, err := e.Evaluate(ctx, m.Expression, &budget)
	if err == nil {
		err = result.Err
	}
	if err != nil {
		return false, err
	}
	before, err := c.Cluster.Show(ctx, c.Object, t.in.Kind)
	if err != nil {
		return false, err
	}
	was, err := json.Marshal(before)
	if err != nil {
		return false, fmt.Errorf("encoding the object: %w", err)
	}
	var after []byte
	if m.kind == admissionv1.PatchTypeApplyConfiguration {
		after, err = c.merge(t, before, result)
	} else {
		after, err = patched(was, result)
	}
	if err != nil || after == nil || string(after) == string(was) {
		return false, err
	}
	strict, err := c.Cluster.Read(ctx, after, t.in.Kind, c.Object)
	if err = cmp.Or(err, strict); err != nil {
		return false, apierrors.NewInternalError(fmt.Errorf("decoding a mutated %s: %w", t.in.Kind.Kind, err))
	}
	return true, nil
}

func (c *change) merge(t task, doc map[string]any, result cel.Evaluation) ([]byte, error) {
	patch, err := result.ApplyConfiguration()
	if err != nil {
		return nil, err
	}
	patch["apiVersion"], patch["kind"] = t.in.Kind.GroupVersion().String(), t.in.Kind.Kind
	merged, err := c.Cluster.Merge(t.in.Kind, doc, patch)
	if err != nil {
		return nil, fmt.Errorf("error applying patch: %w", err)
	}
	return json.Marshal(merged)
}

// patched returns a document with the JSON patch applied; nil if a test operation of the patch failed, which leaves
// the object unchanged.
func patched(doc []byte, result cel.Evaluation) (after []byte, err error) {
	defer func() { // the library panics if an operation without a value meets a value that is not a scalar
		if fault := recover(); fault != nil {
			after, err = nil, fmt.Errorf("JSON Patch: %v", fault)
		}
	}()
	text, err := result.JSONPatch()
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return nil, fmt.Errorf("JSON Patch: %w", err)
	}
	after, err = patch.Apply(doc)
	if errors.Is(err, jsonpatch.ErrTestFailed) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("JSON Patch: %w", err)
	}
	return after, nil
}

// refuse returns one error for all objections, with the message of the first.
func (c *change) refuse() error {
	if len(c.objections) == 0 {
		return nil
	}
	answer := c.Forbid(errors.New("admission request denied by policy")).(*apierrors.StatusError)
	answer.ErrStatus.Message = c.objections[0].message
	if reason := c.objections[0].reason; reason != "" {
		answer.ErrStatus.Reason = reason
	}
	for _, o := range c.objections {
		answer.ErrStatus.Details.Causes = append(answer.ErrStatus.Details.Causes,
			metav1.StatusCause{Message: o.message})
	}
	return answer
}
