package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/admission/match"
)

// Validating rejects writes that ValidatingAdmissionPolicies do not allow.
type Validating struct {
	policies[validations]
}

// validations are the expressions of one policy.
type validations struct {
	checks []validation
	notes  []note
}

type validation struct {
	*cel.Expression
	says    *cel.Expression // messageExpression; may be nil
	message string
	reason  metav1.StatusReason
}

// note is an audit annotation.
type note struct {
	*cel.Expression
	key string
}

// NewValidating returns a plugin that reads its policies from the cluster, and records their evaluation in the log.
func NewValidating(cluster match.Cluster, log *calls.Log) *Validating {
	return &Validating{policies[validations]{
		cluster:  cluster,
		kind:     schema.GroupResource{Group: admissionv1.GroupName, Resource: "validatingadmissionpolicies"},
		bindings: schema.GroupResource{Group: admissionv1.GroupName, Resource: "validatingadmissionpolicybindings"},
		compile: func(obj api.Object) *boundPolicy[validations] {
			return compileValidating(obj.(*admissionv1.ValidatingAdmissionPolicy), log)
		},
		bind: func(obj api.Object) *binding {
			spec := obj.(*admissionv1.ValidatingAdmissionPolicyBinding).Spec
			b := newBinding(obj.GetName(), spec.PolicyName, spec.ParamRef, spec.MatchResources)
			b.actions = spec.ValidationActions
			return b
		},
	}}
}

func compileValidating(obj *admissionv1.ValidatingAdmissionPolicy, log *calls.Log) *boundPolicy[validations] {
	spec := &obj.Spec
	p, compiler, declared := compilePolicy[validations](obj.Name,
		common{spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, spec.MatchConditions, spec.Variables}, log,
		"validate")
	silent := declared
	silent.Authorizer = false
	for _, v := range spec.Validations {
		check := validation{Expression: compiler.Compile(v.Expression, cel.Bool, declared),
			message: strings.TrimSpace(v.Message), reason: metav1.StatusReasonInvalid}
		if v.MessageExpression != "" {
			check.says = compiler.Compile(v.MessageExpression, cel.String, silent)
		}
		if v.Reason != nil {
			check.reason = *v.Reason
		}
		p.rules.checks = append(p.rules.checks, check)
	}
	for _, a := range spec.AuditAnnotations {
		p.rules.notes = append(p.rules.notes,
			note{compiler.Compile(strings.TrimSpace(a.ValueExpression), cel.StringOrNull, declared), a.Key})
	}
	return p
}

// refusal is a policy's reason to reject the request.
type refusal struct {
	policy, binding string
	message         string
	reason          metav1.StatusReason
}

// failure is the form of a refusal in the audit log.
type failure struct {
	Message           string                         `json:"message"`
	Policy            string                         `json:"policy"`
	Binding           string                         `json:"binding"`
	ExpressionIndex   int                            `json:"expressionIndex"`
	ValidationActions []admissionv1.ValidationAction `json:"validationActions"`
}

// verdict collects the results of all policies for one request.
type verdict struct {
	*match.Request
	denied   []refusal
	failures []failure
}

// Validate implements Validator.
func (v *Validating) Validate(ctx context.Context, a *match.Attributes) error {
	list, err := v.now(ctx)
	if err != nil || len(list) == 0 || match.Exempt(a.GroupResource()) {
		return err
	}
	all := &verdict{Request: match.NewRequest(a, v.cluster)}
	for _, p := range list {
		if err := all.evaluate(ctx, p); err != nil {
			return err
		}
	}
	if err := deadline(ctx); err != nil {
		return err
	}
	all.audit()
	return all.refuse()
}

// misconfigured adds the refusal of a policy that cannot be evaluated.
func (v *verdict) misconfigured(p *boundPolicy[validations], b *binding, err error) {
	if p.ignores {
		return
	}
	r := refusal{policy: p.name, message: err.Error()}
	if b != nil {
		r.binding = b.name
	}
	v.denied = append(v.denied, r)
}

// evaluate evaluates one policy, for each of its bindings and their parameters.
func (v *verdict) evaluate(ctx context.Context, p *boundPolicy[validations]) error {
	notes := map[string][]string{}
	misconfigured := func(b *binding, err error) { v.misconfigured(p, b, err) }
	err := p.each(ctx, v.Request, misconfigured, func(b *binding, in match.Matched, one param) error {
		return v.ask(ctx, p, b, in, one, notes)
	})
	if err != nil {
		return err
	}
	for key, values := range notes {
		v.Audit(p.name+"/"+key, strings.Join(values, ", "))
	}
	return nil
}

// ask evaluates one policy with one parameter.
func (v *verdict) ask(ctx context.Context, p *boundPolicy[validations], b *binding, in match.Matched, one param,
	notes map[string][]string) error {
	bound := bindings(ctx, v.Request, in, one)
	if len(p.conditions.List) > 0 {
		ok, err := p.conditions.Meet(ctx, v.Request, cel.NewEvaluator(bound, p.variables), false)
		if err != nil && !p.ignores {
			v.act(b, p, 0, refusal{message: err.Error()})
		}
		if !ok {
			return nil
		}
	}
	namespace, err := v.NamespaceDocument(ctx)
	if err != nil {
		return err
	}
	bound.Namespace = namespace
	e := cel.NewEvaluator(bound, p.variables)
	budget := int64(cel.PolicyBudget)
	found, err := check(ctx, e, p, &budget)
	if err != nil { // the budget is used up: the other results do not count
		if !p.ignores {
			v.act(b, p, 0, refusal{message: err.Error()})
		}
		return nil
	}
	for i, r := range found {
		if r != nil {
			v.act(b, p, i, *r)
		}
	}
	v.annotate(ctx, e, p, b, notes)
	return nil
}

// check evaluates the validations. A refusal is at the index of its expression.
func check(ctx context.Context, e *cel.Evaluator, p *boundPolicy[validations], budget *int64) ([]*refusal, error) {
	found := make([]*refusal, len(p.rules.checks))
	for i, rule := range p.rules.checks {
		result, err := e.Evaluate(ctx, rule.Expression, budget)
		switch {
		case err != nil:
			return nil, err
		case result.Err != nil && !p.ignores:
			found[i] = &refusal{message: result.Err.Error()}
		case result.Err == nil && !result.True():
			found[i] = &refusal{reason: rule.reason}
		}
	}
	for i, r := range found {
		if r == nil || r.message != "" {
			continue
		}
		var err error
		if r.message, err = p.rules.checks[i].explain(ctx, e, budget); err != nil {
			if found[i] = nil; !p.ignores {
				found[i] = &refusal{message: "failed messageExpression: " + err.Error()}
			}
		}
	}
	return found, nil
}

// explain returns the message of a refusal: the result of messageExpression, if that is one line of a reasonable
// length, or else the message, or the expression itself.
func (v *validation) explain(ctx context.Context, e *cel.Evaluator, budget *int64) (string, error) {
	if v.says != nil {
		result, err := e.Evaluate(ctx, v.says, budget)
		if err != nil {
			return "", err
		}
		text, _ := result.Text()
		if text = strings.TrimSpace(text); text != "" && len(text) <= cel.MaxMessage && !strings.Contains(text, "\n") {
			return text, nil
		}
	}
	if v.message != "" {
		return v.message, nil
	}
	return "failed expression: " + strings.TrimSpace(v.Source), nil
}

// act takes the binding's actions on a refusal.
func (v *verdict) act(b *binding, p *boundPolicy[validations], index int, r refusal) {
	r.policy, r.binding = p.name, b.name
	for _, action := range b.actions {
		switch action {
		case admissionv1.Deny:
			v.denied = append(v.denied, r)
		case admissionv1.Audit:
			v.failures = append(v.failures, failure{r.message, p.name, b.name, index, b.actions})
		case admissionv1.Warn:
			v.Warn(fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", p.name,
				b.name, r.message))
		}
	}
}

// annotate evaluates the audit annotations. If one fails, the request is rejected, independently of the binding's
// actions, unless failures are ignored.
func (v *verdict) annotate(ctx context.Context, e *cel.Evaluator, p *boundPolicy[validations], b *binding,
	notes map[string][]string) {
	const longest = 10 << 10
	budget := int64(cel.PolicyBudget)
	for _, n := range p.rules.notes {
		result, err := e.Evaluate(ctx, n.Expression, &budget)
		if err != nil {
			if !p.ignores {
				v.act(b, p, 0, refusal{message: err.Error()})
			}
			return
		}
		text, isText := result.Text()
		switch text = strings.TrimSpace(text); {
		case result.Err != nil && !p.ignores:
			v.denied = append(v.denied, refusal{policy: p.name, binding: b.name, message: result.Err.Error()})
		case result.Err == nil && !isText && !result.Null():
			v.denied = append(v.denied, refusal{policy: p.name, binding: b.name, message: fmt.Sprintf(
				"valueExpression '%v' resulted in unsupported return type: %v. Return type must be either string "+
					"or null.", n.Source, result.Type())})
		case text != "":
			if text = text[:min(len(text), longest)]; !slices.Contains(notes[n.key], text) {
				notes[n.key] = append(notes[n.key], text)
			}
		}
	}
}

// audit records the first fifty failures with the action Audit.
func (v *verdict) audit() {
	const limit = 50
	if len(v.failures) == 0 {
		return
	}
	list, err := json.Marshal(v.failures[:min(len(v.failures), limit)])
	if err == nil {
		v.Audit("validation.policy.admission.k8s.io/validation_failure", string(list))
	}
}

// refuse returns an error for the first refusal.
func (v *verdict) refuse() error {
	if len(v.denied) == 0 {
		return nil
	}
	first := v.denied[0]
	message := fmt.Sprintf("ValidatingAdmissionPolicy '%s' denied request: %s", first.policy, first.message)
	if first.binding != "" {
		message = fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s", first.policy,
			first.binding, first.message)
	}
	answer := v.Forbid(errors.New(message)).(*apierrors.StatusError)
	if first.reason == "" {
		first.reason = metav1.StatusReasonInvalid
	}
	answer.ErrStatus.Reason, answer.ErrStatus.Code = first.reason, reasonCode(first.reason)
	answer.ErrStatus.Details.Causes = append(answer.ErrStatus.Details.Causes, metav1.StatusCause{Message: message})
	return answer
}
