package structural

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/api/field"
)

// DefaultChecks configures the checks of one definition's defaults, and limits the work for all its schemas together.
// The zero value rejects unknown fields. It is not safe for concurrent use.
type DefaultChecks struct {
	// KeepUnknown reports whether a default may have fields that its schema does not declare. It is called for the
	// first such default. nil means no.
	KeepUnknown func() bool

	spent int64 // cost of the rules so far; at most definitionBudget
	steps int   // checks so far; at most maxDefaultSteps
}

// The limits of the work for the defaults of one definition. cel.RuleBudget limits that of one schema.
const (
	definitionBudget = 3 * cel.RuleBudget
	maxDefaultSteps  = 1_000_000
)

// ValidateDefaults returns the errors in the defaults of a definition's schema at a path: a default must be valid and,
// unless it is in an object's metadata, pruned.
func (s *Schema) ValidateDefaults(path *field.Path, c *DefaultChecks) field.ErrorList {
	if s == nil || s.def == nil && !s.below.defaults {
		return nil
	}
	v := defaultValidation{DefaultChecks: c, compiler: ruleCompiler{stored: true, nodes: map[*Schema]*ruleNode{}},
		budget: min(cel.RuleBudget, definitionBudget-c.spent)}
	before := v.budget
	v.schema(s, path, place{root: s.asRoot(), isRoot: true})
	c.spent += before - v.budget
	return v.errs
}

// asRoot returns the schema as that of a custom resource's root, with metadata that is checked like an
// embedded resource's.
func (s *Schema) asRoot() *Schema {
	if s.embedded {
		return s
	}
	root := *s
	root.embedded = true
	return &root
}

// place is the position of a schema relative to its object: the custom resource or an embedded resource.
type place struct {
	root   *Schema
	isRoot bool
	steps  *defaultStep // from the root; nil at it
	inMeta bool         // in apiVersion, kind or metadata
}

// defaultStep is a step to a field or, without a name, to a list item.
type defaultStep struct {
	before *defaultStep
	name   string
	item   bool
}

func (p place) field(name string) place {
	inMeta := p.inMeta || p.isRoot && isTypeOrMeta(name)
	return place{root: p.root, steps: &defaultStep{before: p.steps, name: name}, inMeta: inMeta}
}

func (p place) item() place {
	return place{root: p.root, steps: &defaultStep{before: p.steps, item: true}, inMeta: p.inMeta}
}

// around returns an object with the value at the place and no other field, or nil if the value would be the root but
// is not an object.
func (p place) around(value any) map[string]any {
	for step := p.steps; step != nil; step = step.before {
		if step.item {
			value = []any{value}
		} else {
			value = map[string]any{step.name: value}
		}
	}
	obj, _ := value.(map[string]any)
	return obj
}

// in returns the value at the place in an object.
func (p place) in(obj any) any {
	return p.steps.in(obj)
}

func (s *defaultStep) in(value any) any {
	if s == nil {
		return value
	}
	switch value := s.before.in(value).(type) {
	case map[string]any:
		return value[s.name]
	case []any:
		if s.item && len(value) > 0 {
			return value[0]
		}
	}
	return nil
}

// defaultValidation is one walk over a schema.
type defaultValidation struct {
	*DefaultChecks
	compiler ruleCompiler
	budget   int64
	over     bool // over a limit; no further default is checked
	errs     field.ErrorList
}

func (v *defaultValidation) add(errs ...*field.Error) { v.errs = append(v.errs, errs...) }

// schema checks the default of a schema and the defaults below it. additionalProperties cannot have defaults.
func (v *defaultValidation) schema(s *Schema, path *field.Path, p place) {
	if s == nil || s.def == nil && !s.below.defaults || v.over || field.Enough(v.errs) {
		return
	}
	if s.embedded && !p.isRoot {
		p = place{root: s, isRoot: true}
	}
	if s.def != nil {
		v.value(s, path.Child("default"), p)
	}
	v.schema(s.items, path.Child("items"), p.item())
	for _, name := range s.names {
		v.schema(s.properties[name], path.Child("properties").Key(name), p.field(name))
	}
}

func (v *defaultValidation) value(s *Schema, path *field.Path, p place) {
	value := runtime.DeepCopyJSONValue(s.def)
	if p.inMeta {
		if err := inMetadata(value, p); err != nil {
			v.add(field.Invalid(path, s.def, fmt.Sprintf("must result in valid metadata: %v", err)))
			return
		}
	} else {
		embedded := s
		if p.isRoot {
			embedded = p.root
		}
		(&pruner{}).prune(value, embedded, false)
		if !reflect.DeepEqual(value, s.def) {
			value = runtime.DeepCopyJSONValue(s.def)
			if v.KeepUnknown == nil || !v.KeepUnknown() {
				v.add(field.Invalid(path, s.def, "must not have unknown fields"))
			}
		}
		if err := (&coercer{}).coerce(value, embedded, path); err != nil {
			v.add(err)
			return
		}
		if errs := validateEmbedded(value, embedded, path, nil); len(errs) > 0 {
			v.add(errs...)
			return
		}
	}
	if errs := v.check(s, value, path); len(errs) > 0 {
		v.add(errs...)
		return
	}
	v.rules(s, value, path, p.isRoot)
}

// inMetadata checks a default within an object's metadata, using an object that has no other field.
func inMetadata(value any, p place) error {
	obj := p.around(runtime.DeepCopyJSONValue(value))
	if obj == nil {
		return errors.New("object root default value must be of object type")
	}
	for name, word := range map[string]string{"apiVersion": "validation/v1", "kind": "Validation"} {
		if _, found := obj[name]; !found {
			obj[name] = word
		}
	}
	if err := (&coercer{}).coerce(obj, p.root, nil); err != nil {
		return err
	}
	if errs := validateEmbedded(obj, p.root, nil, nil); len(errs) > 0 {
		return errs.ToAggregate()
	}
	return nil
}

// check validates the value. As in kube-apiserver, it also checks formats that objects are not checked for.
func (v *defaultValidation) check(s *Schema, value any, path *field.Path) field.ErrorList {
	w := checking{ctx: context.Background(), asWritten: true, limit: max(1, maxDefaultSteps-v.steps)}
	w.value(s, value, nil)
	v.steps += w.steps
	if w.err != nil {
		v.over = true
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, w.err.Error())}
	}
	return w.result(path)
}

// rules evaluates the rules twice: as in an update without changes, and as in a create.
func (v *defaultValidation) rules(s *Schema, value any, path *field.Path, root bool) {
	if len(s.validations) == 0 && !s.below.rules {
		return
	}
	c := &v.compiler
	t := c.types.declare(s, root, c.types.unique())
	if t == nil && len(s.validations) > 0 {
		v.add(field.Invalid(path, s.writtenName, fmt.Sprintf("rule compiler initialization error: %v", errNoType)))
		return
	}
	node := c.node(s, s, root, t)
	left := v.budget
	for _, old := range []any{value, nil} {
		e := ruleEvaluation{ctx: context.Background(), budget: v.budget}
		e.value(node, value, old, correlation{}, path)
		left, v.over = min(left, e.budget), v.over || e.over
		if len(e.errs) > 0 {
			v.add(e.errs...)
			break
		}
	}
	v.budget = left
}
