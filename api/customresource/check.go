package customresource

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	apifield "k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/structural"
)

// checking is one check of an object against the schema of a version.
type checking struct {
	ctx               context.Context
	schema            *structural.Schema
	scale             *scale
	obj               *Object
	content, previous map[string]any // previous is nil for a create
}

// check returns the errors that the schema and its rules find.
func (v *Version) check(ctx context.Context, obj, old api.Object, subresource string) (errs field.ErrorList,
	warnings []string, err error) {
	c := checking{ctx: ctx, scale: v.scale, obj: obj.(*Object)}
	if c.schema, err = v.Schema(); err != nil {
		return nil, nil, err
	}
	c.content = c.obj.content()
	if old != nil {
		c.previous = old.(*Object).content()
	}
	if subresource == "status" {
		errs, err = c.status()
	} else {
		errs, err = c.object()
	}
	if err != nil {
		return nil, nil, err
	}
	errs = append(errs, c.lists()...)
	if !c.schema.HasRules() {
		return errs, nil, nil
	}
	if slices.ContainsFunc(errs, blocks) {
		return append(errs, field.Invalid(nil, nil, "some validation rules were not checked because the object was "+
			"invalid; correct the existing errors to complete validation")), nil, nil
	}
	broken, warnings, err := c.schema.ValidateRules(ctx, c.content, c.previous)
	return append(errs, broken...), warnings, err
}

// object checks the whole object.
func (c *checking) object() (errs field.ErrorList, err error) {
	if c.previous == nil {
		errs, err = c.schema.Validate(c.ctx, c.content)
	} else {
		errs, err = c.schema.ValidateUpdate(c.ctx, c.content, c.previous)
	}
	if c.scale != nil {
		errs = append(errs, c.scale.validateSpec(c.obj)...)
		errs = append(errs, c.scale.validateStatus(c.obj)...)
	}
	return append(errs, c.schema.ValidateEmbedded(c.content)...), err
}

// status checks the status.
func (c *checking) status() (errs field.ErrorList, err error) {
	if status, found := c.content["status"]; found {
		errs, err = c.schema.ValidateStatus(c.ctx, status, c.previous["status"])
	}
	if c.scale != nil {
		errs = append(errs, c.scale.validateStatus(c.obj)...)
	}
	return errs, err
}

// lists checks the keys of lists. An object that already had such errors may keep them.
func (c *checking) lists() field.ErrorList {
	errs := c.schema.ValidateLists(c.content)
	if len(errs) > 0 && c.previous != nil && len(c.schema.ValidateLists(c.previous)) > 0 {
		return nil
	}
	return errs
}

// blocks reports whether the error prevents the evaluation of the rules, which may rely on the violated constraint.
func blocks(err *field.Error) bool {
	switch err.Type {
	case apifield.ErrorTypeNotSupported, apifield.ErrorTypeRequired, apifield.ErrorTypeTooLong,
		apifield.ErrorTypeTooMany, apifield.ErrorTypeTypeInvalid:
		return true
	}
	return false
}

var standardFinalizers = []string{metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents,
	string(corev1.FinalizerKubernetes)}

// warnings returns warnings about new finalizers.
func warnings(obj, old api.Object) []string {
	var texts []string
	for _, name := range slices.Compact(slices.Sorted(slices.Values(obj.GetFinalizers()))) {
		if old != nil && slices.Contains(old.GetFinalizers(), name) {
			continue
		}
		for _, why := range validation.IsQualifiedName(name) {
			texts = append(texts, fmt.Sprintf("metadata.finalizers: %q: %s", name, why))
		}
		if strings.Contains(name, "/") || slices.Contains(standardFinalizers, name) {
			continue
		}
		path := ""
		if strings.Contains(name, ".") {
			path = " including a path (/)"
		}
		texts = append(texts, fmt.Sprintf("metadata.finalizers: %q: prefer a domain-qualified finalizer name%s to "+
			"avoid accidental conflicts with other finalizer writers", name, path))
	}
	return texts
}
