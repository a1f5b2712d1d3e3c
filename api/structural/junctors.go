package structural

import (
	"fmt"

	"k8s.io/kube-openapi/pkg/validation/validate"
)

// junctors checks the combinations of schemas: anyOf, oneOf, allOf and not.
func (v *checking) junctors(c *checks, value any, p *past, d *verdict) {
	if c.anyOf != nil {
		v.anyOf(c.anyOf, value, p, d)
	}
	if c.oneOf != nil {
		v.oneOf(c.oneOf, value, p, d)
	}
	if c.allOf != nil {
		v.allOf(c.allOf, value, p, d)
	}
	if c.not != nil && v.quietly(c.not, value, p).ok {
		d.ok = false
		v.fail(func(path string) error { return fmt.Errorf(validate.MustNotValidateSchemaError, path) })
	}
}

// quietly checks a value against a branch without collecting its errors: they need not make the value invalid.
func (v *checking) quietly(branch *Schema, value any, p *past) verdict {
	v.quiet++
	defer func() { v.quiet-- }()
	return v.schema(branch, value, p)
}

// closest is the branch that failed with the most matches.
type closest struct {
	branch  *Schema
	matches int
}

func (c *closest) consider(branch *Schema, d verdict) {
	if c.branch == nil || d.matches > c.matches {
		c.branch, c.matches = branch, d.matches
	}
}

// explain records why the closest branch failed. It checks the branch a second time, to record its faults. Nested
// branches that may fail are not checked again, so that the work grows linearly with the depth, not exponentially.
func (v *checking) explain(c closest, value any, p *past, d *verdict) {
	if v.quiet == 0 && c.branch != nil {
		v.schema(c.branch, value, p)
	}
	d.matches += c.matches
}

func (v *checking) anyOf(branches []*Schema, value any, p *past, d *verdict) {
	var best closest
	for _, branch := range branches {
		r := v.quietly(branch, value, p)
		if r.ok {
			d.matches += r.matches
			return
		}
		best.consider(branch, r)
	}
	d.ok = false
	v.fail(func(path string) error { return fmt.Errorf(validate.MustValidateAtLeastOneSchemaError, path) })
	v.explain(best, value, p, d)
}

func (v *checking) oneOf(branches []*Schema, value any, p *past, d *verdict) {
	var best closest
	valid, matches := 0, 0
	for _, branch := range branches {
		switch r := v.quietly(branch, value, p); {
		case r.ok && valid == 0:
			valid, matches, best = 1, r.matches, closest{}
		case r.ok:
			valid++
		case valid == 0:
			best.consider(branch, r)
		}
	}
	if valid == 1 {
		d.matches += matches
		return
	}
	d.ok = false
	v.fail(func(path string) error {
		found := "Found none valid"
		if valid > 0 {
			found = fmt.Sprintf("Found %d valid alternatives", valid)
		}
		return fmt.Errorf(validate.MustValidateOnlyOneSchemaError, path, found)
	})
	v.explain(best, value, p, d)
}

func (v *checking) allOf(branches []*Schema, value any, p *past, d *verdict) {
	valid := 0
	for _, branch := range branches {
		r := v.schema(branch, value, p)
		if r.ok {
			valid++
		}
		d.and(r)
	}
	if valid == len(branches) {
		return
	}
	v.fail(func(path string) error {
		none := ""
		if valid == 0 {
			none = ". None validated"
		}
		return fmt.Errorf(validate.MustValidateAllSchemasError, path, none)
	})
}
