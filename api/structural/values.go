package structural

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-openapi/swag/conv"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	openapierrors "k8s.io/kube-openapi/pkg/validation/errors"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

// formats are the string formats that are checked. Others are ignored. They are spelled without dashes, as
// kube-openapi compares them.
var formats = []string{"bsonobjectid", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac", "uuid", "uuid3",
	"uuid4", "uuid5", "isbn", "isbn10", "isbn13", "creditcard", "ssn", "hexcolor", "rgbcolor", "byte", "password",
	"date", "duration", "datetime", "k8sshortname", "k8slongname"}

// supportedFormat returns the format of a schema if it is checked for the schema's type, or "".
func supportedFormat(p *apiextensionsv1.JSONSchemaProps, t types) string {
	if t != 0 && t != text && t != integer && t != number || !SupportsFormat(t.String(), p.Format) {
		return ""
	}
	return p.Format
}

// SupportsFormat reports whether values of a type ("" is any) are checked for a format.
func SupportsFormat(typeName, format string) bool {
	switch typeName {
	case "", "string":
		return slices.Contains(formats, strings.ReplaceAll(format, "-", ""))
	case "integer":
		return format == "int32" || format == "int64"
	case "number":
		return format == "float" || format == "double"
	}
	return false
}

// types checks a value's type. kube-openapi's validator treats values with a format differently: it does not check the
// type of a string or list that has a string format.
func (v *checking) types(s *Schema, value any, d *verdict) {
	actual := typeOf(value)
	format := v.formatOf(s)
	want := v.typesOf(s)
	fits := want.has(actual) || actual == integer && want.has(number) ||
		actual == number && want.has(integer) && conv.IsFloat64AJSONInteger(value.(float64))
	switch textual := actual == text || actual == array; {
	case format != "" && textual && !want.has(number) && !want.has(integer):
		fits = true
	case format != "" && !textual && !fits:
		if natural := naturalFormat(actual); natural != format {
			d.ok = false
			v.fail(func(path string) error { return openapierrors.InvalidType(path, in, format, natural) })
			return
		}
	}
	if fits {
		d.matches++
		return
	}
	d.ok = false
	v.fail(func(path string) error {
		return openapierrors.InvalidType(path, in, v.typeName(s), typeNames[slices.Index(allTypes, actual)])
	})
}

var allTypes = []types{object, array, text, boolean, integer, number, null}

// naturalFormat returns the format of a Go number.
func naturalFormat(t types) string {
	switch t {
	case integer:
		return "int64"
	case number:
		return "float64"
	}
	return ""
}

func (v *checking) text(c *checks, format, s string, d *verdict) {
	d.matches++
	if c != nil {
		v.length(c, s, d)
	}
	if format == "" || !strfmt.Default.ContainsName(format) {
		return
	}
	d.matches++
	if !strfmt.Default.Validates(format, s) {
		d.ok = false
		v.fail(func(path string) error { return openapierrors.InvalidType(path, in, format, s) })
	}
}

// length checks a string's length in characters, and its pattern. It records only the first fault.
func (v *checking) length(c *checks, s string, d *verdict) {
	var fault func(path string) error
	switch {
	// A string has at most as many characters as bytes.
	case c.maxLength != nil && int64(len(s)) > *c.maxLength && int64(utf8.RuneCountInString(s)) > *c.maxLength:
		fault = func(path string) error { return openapierrors.TooLong(path, in, *c.maxLength, s) }
	case c.minLength != nil && int64(utf8.RuneCountInString(s)) < *c.minLength:
		fault = func(path string) error { return openapierrors.TooShort(path, in, *c.minLength, s) }
	case c.pattern != nil && !v.match(c.pattern, s):
		fault = func(path string) error { return openapierrors.FailedPattern(path, in, c.pattern.String(), s) }
	default:
		return
	}
	d.ok = false
	v.fail(fault)
}

// match reports whether a string matches. It stops early when the context ends.
func (v *checking) match(p *limits.Pattern, s string) bool {
	if v.limit > 0 {
		if v.steps += int(p.Work(s) / workPerStep); v.steps > v.limit {
			v.err = errTooManySteps
			return true
		}
	}
	is, err := p.MatchContext(v.ctx, s)
	if err != nil {
		v.err = err
	}
	return is
}

// numbers are the bounds of a number.
type numbers struct {
	typeName, format                   string // "" unless the schema has exactly one type
	minimum, maximum, multipleOf       *float64
	exclusiveMinimum, exclusiveMaximum bool
	// outside reports that a bound is outside of the type's range, which makes every value invalid.
	outside bool
}

func newNumbers(p *apiextensionsv1.JSONSchemaProps, t types) *numbers {
	n := &numbers{minimum: p.Minimum, maximum: p.Maximum, multipleOf: p.MultipleOf,
		exclusiveMinimum: p.ExclusiveMinimum, exclusiveMaximum: p.ExclusiveMaximum}
	if t == integer || t == number {
		n.typeName, n.format = t.String(), supportedFormat(p, t)
	}
	if n.minimum == nil && n.maximum == nil && n.multipleOf == nil && n.typeName != "integer" && n.format != "float" {
		return nil
	}
	for _, bound := range []*float64{n.minimum, n.maximum, n.multipleOf} {
		n.outside = n.outside || bound != nil &&
			validate.IsValueValidAgainstRange(*bound, n.typeName, n.format, "", "") != nil
	}
	return n
}

func (v *checking) number(c *checks, value any, d *verdict) {
	d.matches += 2
	if c == nil || c.numbers == nil {
		return
	}
	n := c.numbers
	if n.fits(value) && n.within(value) {
		return
	}
	for _, fault := range n.faults(value, string(v.path)) {
		d.ok = false
		v.fail(func(string) error { return fault })
	}
}

// fits reports whether the number is certainly in the range of its type and format.
func (n *numbers) fits(value any) bool {
	i, ok := value.(int64)
	switch {
	case n.typeName == "integer" && n.format == "int32":
		return ok && i >= math.MinInt32 && i <= math.MaxInt32
	case n.typeName == "integer":
		return ok
	}
	return n.format != "float"
}

// within reports whether the number is certainly within its bounds. faults decides the other cases with the library's
// arithmetic.
func (n *numbers) within(value any) bool {
	f, ok := value.(float64)
	if !ok {
		f = float64(value.(int64))
	}
	return n.multipleOf == nil && !n.outside && exact(f) && (n.minimum == nil || exact(*n.minimum) && f > *n.minimum) &&
		(n.maximum == nil || exact(*n.maximum) && f < *n.maximum)
}

// exact reports whether a float can be converted to an int64 and back without loss: an integer of at most 53 bits.
func exact(f float64) bool { return f == math.Trunc(f) && math.Abs(f) < 1<<53 }

// faults returns kube-openapi's errors for a number, in its order: type, multipleOf, minimum, maximum. Like
// kube-openapi, it compares an integer with the integral part of a bound. If the bound is outside of the range of the
// number's type, it compares the number as a float.
func (n *numbers) faults(value any, path string) (faults []error) {
	add := func(err error) {
		if err != nil && !reflect.ValueOf(err).IsNil() {
			faults = append(faults, err)
		}
	}
	add(validate.IsValueValidAgainstRange(value, n.typeName, n.format, "Checked", path))
	f, ok := value.(float64)
	if !ok {
		f = float64(value.(int64))
	}
	for _, bound := range []struct {
		value           *float64
		name            string
		natural, widest func(bound float64) *openapierrors.Validation
	}{
		{n.multipleOf, "MultipleOf",
			func(b float64) *openapierrors.Validation { return validate.MultipleOfNativeType(path, in, value, b) },
			func(b float64) *openapierrors.Validation { return validate.MultipleOf(path, in, f, b) }},
		{n.minimum, "Minimum boundary",
			func(b float64) *openapierrors.Validation {
				return validate.MinimumNativeType(path, in, value, b, n.exclusiveMinimum)
			},
			func(b float64) *openapierrors.Validation { return validate.Minimum(path, in, f, b, n.exclusiveMinimum) }},
		{n.maximum, "Maximum boundary",
			func(b float64) *openapierrors.Validation {
				return validate.MaximumNativeType(path, in, value, b, n.exclusiveMaximum)
			},
			func(b float64) *openapierrors.Validation { return validate.Maximum(path, in, f, b, n.exclusiveMaximum) }},
	} {
		if bound.value == nil {
			continue
		}
		compare := bound.natural
		if err := validate.IsValueValidAgainstRange(*bound.value, n.typeName, n.format, bound.name, path); err != nil {
			add(err)
			compare = bound.widest
		}
		add(compare(*bound.value))
	}
	return faults
}

// enum checks that the value is listed. kube-openapi converts a value to the type of each listed value before it
// compares them. null is never listed.
func (v *checking) enum(c *checks, value any, d *verdict) {
	if c == nil || c.enum == nil || listed(c.enum, value) {
		return
	}
	d.ok = false
	v.fail(func(path string) error { return openapierrors.EnumFail(path, in, value, c.enum) })
}

func listed(values []any, value any) bool {
	actual := reflect.ValueOf(value)
	if !actual.IsValid() {
		return false
	}
	for _, one := range values {
		switch one := one.(type) {
		case nil:
			continue
		case string:
			if value == one {
				return true
			}
		}
		if t := reflect.TypeOf(one); actual.Type().ConvertibleTo(t) &&
			reflect.DeepEqual(actual.Convert(t).Interface(), one) {
			return true
		}
	}
	return false
}
