package admissionregistration

import (
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/api/field"
)

// expressions compiles the expressions of one object and collects their errors. An expression that the stored object
// already has may use all features that this server can read, a new one only features that every server of the
// previous release can read as well. Unchanged match conditions are not compiled again. Compilation begins only after
// all expressions have been counted (finish).
type expressions struct {
	*cel.Compiler
	params bool
	// stored has the expressions of the object that is being replaced.
	stored sets.Set[string]
	// jobs compile the object's expressions, including its match conditions, in order.
	jobs []func()
	errs field.ErrorList
}

// maxExpressions limits the expressions of one object. Each takes up to half a millisecond to compile, here and on
// every server that evaluates it. Kubernetes has no such limit. The largest policies in use have a few dozen.
const maxExpressions = 1000

func newExpressions(variables, params bool, stored ...string) *expressions {
	return &expressions{Compiler: cel.NewCompiler(variables), params: params, stored: sets.New(stored...)}
}

// add adds an expression for finish to compile. It reports the first one that exceeds the limit.
func (e *expressions) add(path *field.Path, compile func()) {
	e.jobs = append(e.jobs, compile)
	if len(e.jobs) == maxExpressions+1 {
		e.errs = append(e.errs, field.TooMany(path, len(e.jobs), maxExpressions))
	}
}

// finish compiles the expressions, unless there are too many, and returns the errors.
func (e *expressions) finish() field.ErrorList {
	if len(e.jobs) > maxExpressions {
		return e.errs
	}
	for _, compile := range e.jobs {
		if field.Enough(e.errs) {
			break
		}
		compile()
	}
	return e.errs
}

func (e *expressions) declare(source string, d cel.Declarations) cel.Declarations {
	d.Params, d.Stored = e.params, e.stored.Has(source)
	return d
}

// check adds an expression. An empty one is reported elsewhere.
func (e *expressions) check(path *field.Path, source string, want cel.Result, d cel.Declarations) {
	e.checkBy(e.Compiler, path, source, want, d)
}

func (e *expressions) checkBy(c *cel.Compiler, path *field.Path, source string, want cel.Result, d cel.Declarations) {
	if strings.TrimSpace(source) == "" {
		return
	}
	e.add(path, func() { e.note(path, source, c.Compile(source, want, e.declare(source, d))) })
}

func (e *expressions) note(path *field.Path, source string, x *cel.Expression) {
	if x.Err != nil {
		e.errs = append(e.errs, field.Invalid(path, source, x.Err.Error()))
	}
}

var withAuthorizer = cel.Declarations{Authorizer: true}

// checkConditions adds match conditions, which have no variables. A list that is too long is reported elsewhere.
func (e *expressions) checkConditions(conditions []admissionv1.MatchCondition, path *field.Path) {
	if len(conditions) > maxConditions {
		return
	}
	plain := cel.NewCompiler(false)
	for i, c := range conditions {
		e.checkBy(plain, path.Index(i).Child("expression"), strings.TrimSpace(c.Expression), cel.Bool, withAuthorizer)
	}
}

func (e *expressions) checkVariables(variables []admissionv1.Variable, path *field.Path) {
	for i, v := range variables {
		if strings.TrimSpace(v.Expression) == "" || strings.TrimSpace(v.Name) == "" {
			continue
		}
		e.add(path.Index(i), func() {
			e.note(path.Index(i).Child("expression"), v.Expression,
				e.Define(v.Name, v.Expression, e.declare(v.Expression, withAuthorizer)))
		})
	}
}

// validateValidatingExpressions compiles the expressions of a policy; old is nil for a new one.
func validateValidatingExpressions(p, old *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
	if old != nil && reflect.DeepEqual(p.Spec, old.Spec) {
		return nil
	}
	path, spec := field.NewPath("spec"), &p.Spec
	e := newExpressions(len(spec.Variables) > 0, spec.ParamKind != nil, validatingSources(old)...)
	if old == nil || !reflect.DeepEqual(spec.ParamKind, old.Spec.ParamKind) ||
		!reflect.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions) {
		e.checkConditions(spec.MatchConditions, path.Child("matchConditions"))
	}
	e.checkVariables(spec.Variables, path.Child("variables"))
	for i, v := range spec.Validations {
		idxPath := path.Child("validations").Index(i)
		e.check(idxPath.Child("expression"), v.Expression, cel.Bool, withAuthorizer)
		e.check(idxPath.Child("messageExpression"), v.MessageExpression, cel.String, cel.Declarations{})
	}
	for i, a := range spec.AuditAnnotations {
		if value := strings.TrimSpace(a.ValueExpression); len(value) <= longestAuditExpression {
			e.check(path.Child("auditAnnotations").Index(i).Child("valueExpression"), value, cel.StringOrNull,
				withAuthorizer)
		}
	}
	return e.finish()
}

// validatingSources returns all expressions of a policy.
func validatingSources(p *admissionv1.ValidatingAdmissionPolicy) []string {
	if p == nil {
		return nil
	}
	sources := sharedSources(p.Spec.MatchConditions, p.Spec.Variables)
	for _, v := range p.Spec.Validations {
		sources = append(sources, v.Expression, v.MessageExpression)
	}
	for _, a := range p.Spec.AuditAnnotations {
		sources = append(sources, strings.TrimSpace(a.ValueExpression))
	}
	return sources
}

func sharedSources(conditions []admissionv1.MatchCondition, variables []admissionv1.Variable) []string {
	var sources []string
	for _, c := range conditions {
		sources = append(sources, strings.TrimSpace(c.Expression))
	}
	for _, v := range variables {
		sources = append(sources, v.Expression)
	}
	return sources
}

// validateMutatingExpressions compiles the expressions of a mutating policy; old is nil for a new one.
func validateMutatingExpressions(p, old *admissionv1.MutatingAdmissionPolicy) field.ErrorList {
	if old != nil && reflect.DeepEqual(p.Spec, old.Spec) {
		return nil
	}
	path, spec := field.NewPath("spec"), &p.Spec
	e := newExpressions(len(spec.Variables) > 0, spec.ParamKind != nil, mutatingSources(old)...)
	if old == nil || !reflect.DeepEqual(spec.ParamKind, old.Spec.ParamKind) ||
		!reflect.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions) {
		e.checkConditions(spec.MatchConditions, path.Child("matchConditions"))
	}
	e.checkVariables(spec.Variables, path.Child("variables"))
	patching := cel.Declarations{Authorizer: true, Patch: true}
	for i, m := range spec.Mutations {
		idxPath := path.Child("mutations").Index(i)
		switch {
		case m.PatchType == admissionv1.PatchTypeApplyConfiguration && m.ApplyConfiguration != nil:
			e.check(idxPath.Child("applyConfiguration", "expression"), m.ApplyConfiguration.Expression, cel.Object,
				patching)
		case m.PatchType == admissionv1.PatchTypeJSONPatch && m.JSONPatch != nil:
			e.check(idxPath.Child("jsonPatch", "expression"), m.JSONPatch.Expression, cel.Patches, patching)
		}
	}
	return e.finish()
}

func mutatingSources(p *admissionv1.MutatingAdmissionPolicy) []string {
	if p == nil {
		return nil
	}
	sources := sharedSources(p.Spec.MatchConditions, p.Spec.Variables)
	for _, m := range p.Spec.Mutations {
		if m.ApplyConfiguration != nil {
			sources = append(sources, m.ApplyConfiguration.Expression)
		}
		if m.JSONPatch != nil {
			sources = append(sources, m.JSONPatch.Expression)
		}
	}
	return sources
}

// validateWebhookExpressions compiles the match conditions of webhooks, unless none of them has changed.
func validateWebhookExpressions(hooks, old [][]admissionv1.MatchCondition) field.ErrorList {
	if old != nil && slices.EqualFunc(hooks, old, func(a, b []admissionv1.MatchCondition) bool {
		return slices.Equal(a, b)
	}) {
		return nil
	}
	var stored []string
	for _, conditions := range old {
		stored = append(stored, sharedSources(conditions, nil)...)
	}
	e := newExpressions(false, false, stored...)
	for i, conditions := range hooks {
		e.checkConditions(conditions, field.NewPath("webhooks").Index(i).Child("matchConditions"))
	}
	return e.finish()
}

func mutatingConditions(c *admissionv1.MutatingWebhookConfiguration) [][]admissionv1.MatchCondition {
	all := make([][]admissionv1.MatchCondition, len(c.Webhooks))
	for i := range c.Webhooks {
		all[i] = c.Webhooks[i].MatchConditions
	}
	return all
}

func validatingConditions(c *admissionv1.ValidatingWebhookConfiguration) [][]admissionv1.MatchCondition {
	all := make([][]admissionv1.MatchCondition, len(c.Webhooks))
	for i := range c.Webhooks {
		all[i] = c.Webhooks[i].MatchConditions
	}
	return all
}
