package structural

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	openapierrors "k8s.io/kube-openapi/pkg/validation/errors"

	"github.com/coxswain-dev/coxswain/api/field"
)

// Validate returns the values of a custom resource that the schema does not allow: types, bounds, patterns, formats,
// enums, required fields, and combinations of schemas. When ctx ends, it stops and returns ctx's error.
func (s *Schema) Validate(ctx context.Context, obj map[string]any) (field.ErrorList, error) {
	return s.run(ctx, obj, nil)
}

// ValidateUpdate is Validate for an update, which is not rejected for values that it does not change: it omits the
// errors of a value that equals the one at the same place in old. Items of lists have the same place if the list has
// keys (x-kubernetes-list-type: map) and their keys are equal. Other lists are compared as one value.
// https://kep.k8s.io/4008
func (s *Schema) ValidateUpdate(ctx context.Context, obj, old map[string]any) (field.ErrorList, error) {
	return s.run(ctx, obj, &past{schema: s, value: obj, old: old})
}

// ValidateStatus is ValidateUpdate for an object's status alone. old is the former status, or nil.
func (s *Schema) ValidateStatus(ctx context.Context, status, old any) (field.ErrorList, error) {
	if s == nil || s.properties["status"] == nil {
		return nil, nil
	}
	below := s.properties["status"]
	errs, err := below.run(ctx, status, &past{schema: below, value: status, old: old})
	for _, err := range errs {
		if err.Field == "" || err.Field == "<nil>" {
			err.Field = "status"
		} else {
			err.Field = "status." + err.Field
		}
	}
	return errs, err
}

func (s *Schema) run(ctx context.Context, obj any, p *past) (field.ErrorList, error) {
	if s == nil {
		return nil, nil
	}
	v := checking{ctx: ctx}
	v.value(s, obj, p)
	if v.err != nil {
		return nil, v.err
	}
	return v.result(nil), nil
}

// checking is one walk over an object. Each check returns a verdict. The faults are collected apart from it, since a
// branch of anyOf may fail without making the object invalid: while quiet is above 0, no fault is collected.
type checking struct {
	ctx    context.Context
	err    error // ctx's
	steps  int   // values and patterns checked; every now and then ctx is examined
	path   []byte
	quiet  int
	faults []error

	// asWritten also checks formats that objects are not checked for, and the type that is written for an
	// int-or-string.
	asWritten bool
	limit     int // on steps; 0 means none
}

var errTooManySteps = errors.New("the value takes too long to validate")

// verdict is the result for one value. matches counts the checks that it passed, here and below, as kube-openapi's
// validator counts them: of several schemas that all fail, the one with the most matches provides the error.
type verdict struct {
	ok      bool
	matches int
}

func (d *verdict) and(other verdict) {
	d.ok = d.ok && other.ok
	d.matches += other.matches
}

// fail records a fault of the value at the current path. It calls make only if the fault is collected.
func (v *checking) fail(make func(path string) error) {
	if v.quiet == 0 && len(v.faults) < field.MaxErrors {
		v.faults = append(v.faults, make(string(v.path)))
	}
}

// in is the location in kube-openapi's messages: "spec.x in body must be …".
const in = "body"

const (
	// every is the number of values checked between two checks of the context.
	every = 1024
	// workPerStep is the amount of a pattern's work that counts as one step.
	workPerStep = 100
)

// value checks a value against a schema. It omits the errors of a value that has not changed.
func (v *checking) value(s *Schema, value any, p *past) verdict {
	if v.steps++; v.steps%every == 0 {
		v.err = v.ctx.Err()
	}
	if v.err != nil {
		return verdict{}
	}
	before := len(v.faults)
	d := v.schema(s, value, p)
	if !d.ok && p.unchanged() {
		v.faults = v.faults[:before]
		d.ok = true
	}
	return d
}

// schema checks a value against a schema or a branch of one.
func (v *checking) schema(s *Schema, value any, p *past) verdict {
	d := verdict{ok: true}
	if v.limit > 0 && v.tooFar(s) {
		return d
	}
	if value == nil {
		v.null(s, &d)
		return d
	}
	if v.typesOf(s) != 0 || v.formatOf(s) != "" {
		v.types(s, value, &d)
		d.matches++
	}
	if s.checks != nil {
		v.junctors(s.checks, value, p, &d)
	}
	d.matches += 2 // one for the combinations of schemas, one for having checked them
	switch value := value.(type) {
	case string:
		v.text(s.checks, v.formatOf(s), value, &d)
	case int64, float64:
		v.number(s.checks, value, &d)
	case []any:
		v.list(s, value, p, &d)
	}
	v.enum(s.checks, value, &d)
	if obj, ok := value.(map[string]any); ok {
		v.object(s, obj, p, &d)
	}
	d.matches += 2 // one for enum, one for the schema as a whole
	return d
}

// tooFar reports whether a limited walk has to stop. Each check counts, since one value can have many.
func (v *checking) tooFar(s *Schema) bool {
	v.steps += 1 + len(s.bound().enum)
	if v.steps > v.limit && v.err == nil {
		v.err = errTooManySteps
	}
	return v.err != nil
}

func (v *checking) typesOf(s *Schema) types {
	switch {
	case !v.asWritten:
		return s.types
	case s.written == 0 && s.writtenName != "":
		return unknown
	}
	return s.written
}

func (v *checking) typeName(s *Schema) string {
	if v.asWritten {
		return s.writtenName
	}
	return s.types.String()
}

func (v *checking) formatOf(s *Schema) string {
	switch {
	case v.asWritten:
		return s.format
	case s.checks != nil:
		return s.checks.format
	}
	return ""
}

func (v *checking) null(s *Schema, d *verdict) {
	if v.typesOf(s) != 0 && !s.nullable {
		d.ok = false
		v.fail(func(path string) error { return openapierrors.InvalidType(path, in, v.typeName(s), "null") })
	} else {
		d.matches++
	}
	v.enum(s.checks, nil, d)
}

func (v *checking) list(s *Schema, list []any, p *past, d *verdict) {
	if s.items != nil {
		depth := len(v.path)
		for i, item := range list {
			v.path = append(strconv.AppendInt(append(v.path, '['), int64(i), 10), ']')
			d.and(v.value(s.items, item, p.index(i)))
			v.path = v.path[:depth]
		}
	}
	d.matches += 2
	if s.checks == nil {
		return
	}
	size := int64(len(list))
	if minimum := s.checks.minItems; minimum != nil && size < *minimum {
		d.ok = false
		v.fail(func(path string) error { return openapierrors.TooFewItems(path, in, *minimum, size) })
	}
	if limit := s.checks.maxItems; limit != nil && size > *limit {
		d.ok = false
		v.fail(func(path string) error { return openapierrors.TooManyItems(path, in, *limit, size) })
	}
}

func (v *checking) object(s *Schema, obj map[string]any, p *past, d *verdict) {
	d.matches++
	if s.checks != nil {
		v.size(s.checks, int64(len(obj)), d)
	}
	if s.closed || s.additional != nil {
		v.additional(s, obj, p, d)
	}
	if len(s.names) < len(obj) {
		for _, name := range s.names {
			if value, found := obj[name]; found {
				v.property(s.properties[name], name, value, p, d)
			}
		}
	} else {
		for _, name := range sortedNames(obj) {
			if below, found := s.properties[name]; found {
				v.property(below, name, obj[name], p, d)
			}
		}
	}
	if s.checks == nil {
		return
	}
	for _, name := range s.checks.required {
		if _, found := obj[name]; !found {
			d.ok = false
			v.fail(func(path string) error { return openapierrors.Required(path+"."+name, in) })
		}
	}
}

func (v *checking) size(c *checks, size int64, d *verdict) {
	if minimum := c.minProperties; minimum != nil && size < *minimum {
		d.ok = false
		v.fail(func(path string) error { return openapierrors.TooFewProperties(path, in, *minimum, size) })
	}
	if limit := c.maxProperties; limit != nil && size > *limit {
		d.ok = false
		v.fail(func(path string) error { return openapierrors.TooManyProperties(path, in, *limit, size) })
	}
}

// additional checks the fields that are not in properties.
func (v *checking) additional(s *Schema, obj map[string]any, p *past, d *verdict) {
	for _, name := range sortedNames(obj) {
		if _, ok := s.properties[name]; ok {
			continue
		}
		if s.closed {
			d.ok = false
			v.fail(func(path string) error { return openapierrors.PropertyNotAllowed(path, in, name) })
			continue
		}
		depth := len(v.path)
		v.path = append(append(v.path, '.'), name...) // at the root as well
		d.and(v.value(s.additional, obj[name], p.key(name, depth == 0)))
		v.path = v.path[:depth]
	}
}

func (v *checking) property(s *Schema, name string, value any, p *past, d *verdict) {
	depth := len(v.path)
	if depth > 0 {
		v.path = append(v.path, '.')
	}
	v.path = append(v.path, name...)
	d.and(v.value(s, value, p.key(name, depth == 0)))
	v.path = v.path[:depth]
}

// result returns the faults of a value at a path as field errors, without duplicates.
func (v *checking) result(path *field.Path) (errs field.ErrorList) {
	seen := make(map[string]bool, len(v.faults))
	for _, fault := range v.faults {
		if message := fault.Error(); !seen[message] {
			seen[message] = true
			errs = append(errs, fieldError(fault, path))
		}
	}
	return errs
}

// fieldError translates an error of kube-openapi as kube-apiserver does.
func fieldError(fault error, path *field.Path) *field.Error {
	e, ok := fault.(*openapierrors.Validation)
	if !ok { // an error about a combination of schemas or a number's type; it has no path
		return field.Invalid(path, "", fault.Error())
	}
	if e.Name != "" && e.Name != "." {
		path = path.Child(strings.TrimPrefix(e.Name, "."))
	}
	var value any = ""
	if e.Value != nil {
		value = e.Value
	}
	switch e.Code() {
	case openapierrors.RequiredFailCode:
		return field.Required(path, "")
	case openapierrors.EnumFailCode:
		return field.NotSupported(path, e.Value, spelled(e.Values))
	case openapierrors.TooLongFailCode:
		return field.TooLong(path, "", int(e.Valid.(int64)))
	case openapierrors.MaxItemsFailCode, openapierrors.TooManyPropertiesCode:
		return field.TooMany(path, int(e.Value.(int64)), int(e.Valid.(int64)))
	case openapierrors.InvalidTypeCode:
		return field.TypeInvalid(path, value, e.Error())
	}
	return field.Invalid(path, value, e.Error())
}

// spelled returns the values of an enum in the form that errors use.
func spelled(values []any) []string {
	words := make([]string, len(values))
	for i, value := range values {
		if word, ok := value.(string); ok {
			words[i] = word
			continue
		}
		document, _ := json.Marshal(value) // it came from JSON
		words[i] = string(document)
	}
	return words
}
