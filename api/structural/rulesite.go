package structural

import (
	"errors"
	"fmt"

	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/api/field"
)

// RuleSite is a place in the schema of a definition that is about to be written. Its rules can be compiled there. The
// caller walks the schema and skips the rules of values with an invalid schema, since their errors would not help. A
// nil RuleSite is a place in a schema without rules. It is not safe for concurrent use.
type RuleSite struct {
	compiler *ruleCompiler
	schema   *Schema
	around   *RuleSite // nil at the root
	// within derives the value's type from the type of the value around it, which may be nil. ok is false if it cannot
	// be derived.
	within func(around *ruleType) (t *ruleType, ok bool)
	// ruled reports whether this value or one around it has rules.
	ruled bool
	// times is the maximum number of such values in one object, or endless.
	times uint64

	typed bool
	typ   *ruleType
	err   error
}

// RuleSite returns the site of the schema's root. isStored reports whether the stored definition, if there is one,
// already has the expression: such an expression may use features that this release can read but does not accept in
// new rules.
func (s *Schema) RuleSite(isStored func(expression string) bool) *RuleSite {
	if s == nil || s.rules == nil {
		return nil
	}
	return &RuleSite{compiler: &ruleCompiler{isStored: isStored}, schema: s, ruled: len(s.validations) > 0, times: 1}
}

// Property returns the site of a property.
func (r *RuleSite) Property(name string) *RuleSite {
	if r == nil {
		return nil
	}
	return r.below(r.schema.properties[name], func(around *ruleType) (*ruleType, bool) { return around.property(name) })
}

// Items returns the site of a list's items.
func (r *RuleSite) Items() *RuleSite {
	if r == nil {
		return nil
	}
	return r.below(r.schema.items, (*ruleType).element)
}

// AdditionalProperties returns the site of a map's values.
func (r *RuleSite) AdditionalProperties() *RuleSite {
	if r == nil {
		return nil
	}
	return r.below(r.schema.additional, (*ruleType).element)
}

func (r *RuleSite) below(s *Schema, within func(*ruleType) (*ruleType, bool)) *RuleSite {
	if s == nil || len(s.validations) == 0 && !s.below.rules {
		return nil
	}
	return &RuleSite{compiler: r.compiler, schema: s, around: r, within: within,
		ruled: r.ruled || len(s.validations) > 0, times: several(r.times, r.schema.factor())}
}

// factor returns the maximum number of values one level below a value of the schema, or nil if it is unlimited. It
// follows kube-apiserver's estimate, which counts the properties of an object that also allows other fields like those
// fields.
func (s *Schema) factor() *int64 {
	switch {
	case s.types == array:
		return s.bound().maxItems
	case s.types == object && s.open:
		return s.bound().maxProperties
	}
	one := int64(1)
	return &one
}

// property returns the type of a property. It returns false for a property that expressions cannot name.
func (t *ruleType) property(name string) (*ruleType, bool) {
	escaped, ok := cel.Escape(name)
	switch {
	case !ok:
		return nil, false
	case t == nil:
		return nil, true
	}
	property, ok := t.fields[escaped]
	return property, ok
}

// element returns the type of a list's items or a map's values. Other values have none.
func (t *ruleType) element() (*ruleType, bool) {
	if t == nil {
		return nil, true
	}
	return t.item, true
}

var (
	errNoType     = errors.New("failed to convert to declType for CEL validation rules")
	errUndeclared = errors.New("unable to convert structural schema to CEL declarations")
)

// typeOf returns the type of a site with rules, at or above it.
func (r *RuleSite) typeOf() (*ruleType, error) {
	if !r.typed {
		r.typed = true
		r.typ, r.err = r.findType()
	}
	return r.typ, r.err
}

func (r *RuleSite) findType() (*ruleType, error) {
	if r.around != nil && r.around.ruled {
		around, err := r.around.typeOf()
		if err != nil {
			return nil, err
		}
		if t, ok := r.within(around); ok {
			return t, nil
		}
	}
	t := r.compiler.types.declare(r.schema, r.around == nil || r.schema.embedded, r.compiler.types.unique())
	if t == nil {
		return nil, errUndeclared
	}
	return t, nil
}

// Estimates compiles the rules of the site. Their paths begin at the value. The cost of a rule covers all its calls
// for one object, the cost of a message one call, which are the values that kube-apiserver compares with its limits.
// It returns an error if expressions cannot access the value, which fails all the rules.
func (r *RuleSite) Estimates() ([]RuleEstimate, error) {
	if r == nil || len(r.schema.validations) == 0 {
		return nil, nil
	}
	t, err := r.typeOf()
	switch {
	case err != nil:
		return nil, fmt.Errorf("internal error: failed to construct type information for x-kubernetes-validations "+
			"rules: %w", err)
	case t == nil:
		return nil, errNoType
	}
	calls := r.times
	if calls == endless { // as many as fit into a request, each followed by a comma
		calls = uint64(maxRequest / (t.minBytes + 1))
	}
	estimates := make([]RuleEstimate, len(r.schema.validations))
	for i, source := range r.schema.validations {
		compiled := r.compiler.compile(source, r.schema, t)
		estimates[i] = RuleEstimate{ValidationRule: source, Path: field.NewPath("x-kubernetes-validations").Index(i),
			Err: compiled.err, MessageErr: compiled.messageErr, UsesOldSelf: compiled.usesOld,
			Cost: product(compiled.cost, calls), MessageCost: compiled.messageCost}
	}
	return estimates, nil
}
