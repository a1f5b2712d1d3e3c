package structural

import (
	"errors"
	"fmt"

	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/api/field"
)

// RuleSite is a place in the schema of a definition that is about to be written, whose rules can be compiled. The
// caller walks the schema: it skips the rules of values whose schema is wrong, whose errors would be of no use. A nil
// RuleSite is in a schema without rules. It is not safe for concurrent use.
type RuleSite struct {
	compiler *ruleCompiler
	schema   *Schema
	around   *RuleSite // nil at the root
	// within returns the value's type from that of the value around it, which may be nil; known is false if it can't
	// be told from there.
	within func(around *ruleType) (t *ruleType, known bool)
	// ruled reports whether this value or one around it has rules.
	ruled bool
	// times is how many such values an object can have, or endless.
	times uint64

	typed bool
	typ   *ruleType
	err   error
}

// RuleSite returns the root of the schema. known reports whether the stored definition, if there is one, has the
// expression: it may use what this release only reads.
func (s *Schema) RuleSite(known func(expression string) bool) *RuleSite {
	if s == nil || s.rules == nil {
		return nil
	}
	return &RuleSite{compiler: &ruleCompiler{known: known}, schema: s, ruled: len(s.validations) > 0, times: 1}
}

// Property is the site of a property.
func (r *RuleSite) Property(name string) *RuleSite {
	if r == nil {
		return nil
	}
	return r.below(r.schema.properties[name], func(around *ruleType) (*ruleType, bool) { return around.property(name) })
}

// Items is the site of a list's items.
func (r *RuleSite) Items() *RuleSite {
	if r == nil {
		return nil
	}
	return r.below(r.schema.items, (*ruleType).element)
}

// AdditionalProperties is the site of a map's values.
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

// factor is how many values one value of the schema has below it; nil is without limit. It is kube-apiserver's
// estimate, for which the properties of an object that has other fields as well count like those.
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

// property is the type of a property. It is not known of one that expressions can't name.
func (t *ruleType) property(name string) (of *ruleType, known bool) {
	escaped, ok := cel.Escape(name)
	switch {
	case !ok:
		return nil, false
	case t == nil:
		return nil, true
	}
	of, known = t.fields[escaped]
	return of, known
}

// element is the type of a list's items or a map's values; a value that is neither has none.
func (t *ruleType) element() (of *ruleType, known bool) {
	if t == nil {
		return nil, true
	}
	return t.item, true
}

var (
	errNoType     = errors.New("failed to convert to declType for CEL validation rules")
	errUndeclared = errors.New("unable to convert structural schema to CEL declarations")
)

// typeOf is the type of a site that is ruled.
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
		if t, known := r.within(around); known {
			return t, nil
		}
	}
	t := r.compiler.types.declare(r.schema, r.around == nil || r.schema.embedded, r.compiler.types.unique())
	if t == nil {
		return nil, errUndeclared
	}
	return t, nil
}

// Estimates compiles the rules of the site. Their paths begin at the value. The cost of a rule is that of all its
// calls for one object, the cost of a message that of one call, as kube-apiserver compares them with its limits. An
// error is one of all the rules: expressions can't see the value.
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
	if calls == endless { // as many as a request has room for, with a comma each
		calls = uint64(maxRequest / (t.least + 1))
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
