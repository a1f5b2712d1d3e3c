package structural

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	celgo "github.com/google/cel-go/cel"
	celtypes "github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/api/field"
)

// HasRules reports whether the schema has rules that are evaluated.
func (s *Schema) HasRules() bool { return s != nil && s.rules != nil }

// ValidateRules evaluates the rules (x-kubernetes-validations) for an object. old is nil unless it is an update. A
// rule that fails for an unchanged value is a warning instead of an error, unless it reads oldSelf. When ctx ends, it
// stops and returns ctx's error.
func (s *Schema) ValidateRules(ctx context.Context, obj, old map[string]any) (errs field.ErrorList, warnings []string,
	err error) {
	node := s.compiledRules()
	if node == nil {
		return nil, nil, nil
	}
	e := ruleEvaluation{ctx: ctx, budget: cel.RuleBudget}
	var before any
	var c correlation
	if old != nil {
		before, c.current = old, &past{schema: s, value: obj, old: old}
	}
	e.value(node, obj, before, c, nil)
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	return e.errs, e.warnings, nil
}

// ruleEvaluation is one walk over an object.
type ruleEvaluation struct {
	ctx      context.Context
	budget   int64
	over     bool // over budget; no further rule is evaluated
	errs     field.ErrorList
	warnings []string
}

// correlation determines whether a value has changed: the value itself or, if it cannot be correlated with a former
// value, the nearest value around it that can.
type correlation struct{ current, nearest *past }

func (c correlation) key(name string) correlation {
	switch {
	case c.current == nil:
		return c
	case c.nearest == nil && (name == "apiVersion" || name == "kind"):
		return correlation{}
	}
	return correlation{c.current.key(name, false), c.current}
}

func (c correlation) index(i int) correlation {
	if c.current == nil {
		return c
	}
	return correlation{c.current.index(i), c.current}
}

func (c correlation) unchanged() bool {
	if c.current != nil {
		return c.current.unchanged()
	}
	return c.nearest.unchanged()
}

func (e *ruleEvaluation) fail(err *field.Error) { e.errs = append(e.errs, err) }

// value evaluates the rules of a value and of the values below it. A null has no rules: the rules around it can check
// whether it is null.
func (e *ruleEvaluation) value(n *ruleNode, value, old any, c correlation, path *field.Path) {
	if n == nil || value == nil || e.over || field.Enough(e.errs) {
		return
	}
	e.rules(n, value, old, c, path)
	for _, branch := range n.allOf {
		e.value(branch, value, old, correlation{nearest: c.nearest}, path)
	}
	switch value := value.(type) {
	case []any:
		e.list(n, value, old, c, path)
	case map[string]any:
		before, _ := old.(map[string]any)
		if n.additional != nil {
			for _, name := range sortedNames(value) {
				e.value(n.additional, value[name], before[name], c.key(name), path.Key(name))
			}
		}
		for _, name := range n.names {
			if field, found := value[name]; found {
				e.value(n.properties[name], field, before[name], c.key(name), path.Child(name))
			}
		}
	}
}

// list evaluates the rules of the items. Only a list with keys has former items to compare with.
func (e *ruleEvaluation) list(n *ruleNode, list []any, old any, c correlation, path *field.Path) {
	if n.items == nil {
		return
	}
	var byKey map[any]any
	if before, ok := old.([]any); ok && n.schema.correlates() {
		byKey = n.schema.index(before)
	}
	for i, item := range list {
		var was any
		if byKey != nil {
			if key, ok := n.schema.itemKey(item); ok {
				was = byKey[key]
			}
		}
		e.value(n.items, item, was, c.index(i), path.Index(i))
	}
}

// variables binds self and oldSelf. It implements interpreter.Activation.
type variables struct {
	self, old ref.Val
}

// ResolveName implements interpreter.Activation.
func (v *variables) ResolveName(name string) (any, bool) {
	switch name {
	case self:
		return v.self, true
	case oldSelf:
		return v.old, v.old != nil
	}
	return nil, false
}

// Parent implements interpreter.Activation.
func (v *variables) Parent() interpreter.Activation { return nil }

func (e *ruleEvaluation) rules(n *ruleNode, value, old any, c correlation, path *field.Path) {
	if len(n.rules) == 0 {
		return
	}
	if e.budget <= 0 {
		e.end(n, path, outOfBudget)
		return
	}
	plain := &variables{self: ruleValue(value, n.schema)}
	optional := &variables{self: plain.self, old: celtypes.OptionalNone}
	if old != nil {
		plain.old = ruleValue(old, n.schema)
		optional.old = celtypes.OptionalOf(plain.old)
	}
	for _, r := range n.rules {
		if e.over {
			return
		}
		isOptional := r.OptionalOldSelf != nil && *r.OptionalOldSelf
		v := plain
		if isOptional {
			v = optional
		}
		switch {
		case r.err != nil:
			e.fail(field.Invalid(path, n.typeName(), fmt.Sprintf("rule compile error: %v", r.err)))
		case r.program == nil, r.usesOld && old == nil && !isOptional:
		case !e.holds(n, r, v, path):
			e.report(n, r, v, value, c, path)
		}
	}
}

func (n *ruleNode) typeName() string {
	if n.schema.types == integer|text {
		return ""
	}
	return n.schema.types.String()
}

const outOfBudget = "validation failed due to running out of cost budget, no further validation rules will be run"

// end records an error and stops the evaluation.
func (e *ruleEvaluation) end(n *ruleNode, path *field.Path, why string) {
	e.over = true
	e.fail(field.Invalid(path, n.typeName(), why))
}

// evaluate evaluates a program and charges its cost. ok is false if the budget is exhausted.
func (e *ruleEvaluation) evaluate(program celgo.Program, v *variables) (result ref.Val, ok bool, err error) {
	result, details, err := program.ContextEval(e.ctx, v)
	if details == nil || details.ActualCost() == nil {
		return nil, false, err
	}
	cost := *details.ActualCost()
	if cost > math.MaxInt64 || int64(cost) > e.budget {
		return nil, false, err
	}
	e.budget -= int64(cost)
	return result, true, err
}

// holds evaluates a rule. It also returns true for a rule that could not be evaluated: it has recorded that error
// itself.
func (e *ruleEvaluation) holds(n *ruleNode, r *rule, v *variables, path *field.Path) bool {
	result, ok, err := e.evaluate(r.program, v)
	switch {
	case !ok:
		e.end(n, path, outOfBudget)
	case err == nil:
		return result == celtypes.True
	case strings.HasPrefix(err.Error(), "no such overload"):
		// The compiler finds most of these. Here, an argument had a dynamic type.
		e.fail(field.Invalid(path, n.typeName(), fmt.Sprintf("'%v': call arguments did not match a supported "+
			"operator, function or macro signature for rule: %v", err, r.text())))
	case overLimit(err):
		e.end(n, path, fmt.Sprintf("'%v': no further validation rules will be run due to call cost exceeds limit "+
			"for rule: %v", err, r.text()))
	default:
		e.fail(field.Invalid(path, n.typeName(), fmt.Sprintf("%v evaluating rule: %v", err, r.text())))
	}
	return true
}

func overLimit(err error) bool {
	return strings.HasPrefix(err.Error(), "operation cancelled: actual cost limit exceeded")
}

// text returns the text that names the rule in errors.
func (r *rule) text() string {
	if r.Message != "" {
		return strings.TrimSpace(r.Message)
	}
	return strings.TrimSpace(r.Rule)
}

// report records the failure of a rule, as an error or as a warning.
func (e *ruleEvaluation) report(n *ruleNode, r *rule, v *variables, value any, c correlation, path *field.Path) {
	if r.path != "" {
		path = path.Child(r.path)
	}
	add := func(err *field.Error) {
		if !r.usesOld && c.unchanged() {
			e.warnings = append(e.warnings, err.Error())
			return
		}
		e.fail(err)
	}
	detail := r.Message
	if detail = strings.TrimSpace(detail); detail == "" {
		detail = "failed rule: " + r.text()
	}
	if r.message != nil {
		message, err := e.message(r, v)
		if err != nil {
			e.over = true
			add(field.Invalid(path, n.typeName(), err.Error()))
			return
		}
		if message != "" {
			detail = message
		}
	}
	if n.schema.types == object || n.schema.types == array {
		value = field.OmitValueType{}
	}
	add(r.fault(path, value, detail))
}

// fault returns the error for the rule's reason.
func (r *rule) fault(path *field.Path, value any, detail string) *field.Error {
	if r.Reason == nil {
		return field.Invalid(path, value, detail)
	}
	switch *r.Reason {
	case apiextensionsv1.FieldValueForbidden:
		return field.Forbidden(path, detail)
	case apiextensionsv1.FieldValueRequired:
		return field.Required(path, detail)
	case apiextensionsv1.FieldValueDuplicate:
		return field.Duplicate(path, value)
	}
	return field.Invalid(path, value, detail)
}

// message evaluates messageExpression. It returns "" if the result cannot be used. After an error, no further rule is
// evaluated.
func (e *ruleEvaluation) message(r *rule, v *variables) (string, error) {
	result, ok, err := e.evaluate(r.message, v)
	switch {
	case !ok:
		return "", errors.New("messageExpression evaluation failed due to running out of cost budget, no further " +
			"validation rules will be run")
	case err != nil && overLimit(err):
		return "", fmt.Errorf("no further validation rules will be run due to call cost exceeds limit for "+
			"messageExpression: %q", r.MessageExpression)
	case err != nil:
		return "", nil
	}
	text, _ := result.Value().(string)
	if text = strings.TrimSpace(text); len(text) > cel.MaxMessage || strings.Contains(text, "\n") {
		return "", nil
	}
	return text, nil
}
