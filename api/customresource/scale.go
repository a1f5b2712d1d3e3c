package customresource

import (
	"fmt"
	"math"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
)

// scale has the paths of a version's scale subresource.
type scale struct {
	paths                  *apiextensionsv1.CustomResourceSubresourceScale
	spec, status, selector []string
}

func newScale(paths *apiextensionsv1.CustomResourceSubresourceScale) *scale {
	split := func(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }
	s := &scale{paths: paths, spec: split(paths.SpecReplicasPath), status: split(paths.StatusReplicasPath)}
	if paths.LabelSelectorPath != nil && *paths.LabelSelectorPath != "" {
		s.selector = split(*paths.LabelSelectorPath)
	}
	return s
}

// resource returns the scale for the kind's registration.
func (s *scale) resource() *api.Scale {
	return &api.Scale{
		Path:  s.spec,
		Check: func(obj api.Object) (bool, error) { return s.check(obj.(*Object)) },
		Get:   func(obj api.Object) (spec, status int32, selector string) { return s.get(obj.(*Object)) },
		Set: func(obj api.Object, replicas int32) {
			_ = unstructured.SetNestedField(obj.(*Object).Fields, int64(replicas), s.spec...)
		},
	}
}

// check reports whether an object has desired replicas. It returns an error if the object cannot have a Scale.
func (s *scale) check(o *Object) (bool, error) {
	_, found, err := unstructured.NestedInt64(o.Fields, s.spec...)
	if err == nil {
		_, _, err = unstructured.NestedInt64(o.Fields, s.status...)
	}
	if err == nil && s.selector != nil {
		_, _, err = unstructured.NestedString(o.Fields, s.selector...)
	}
	return found, err
}

func (s *scale) get(o *Object) (spec, status int32, selector string) {
	desired, _, _ := unstructured.NestedInt64(o.Fields, s.spec...)
	actual, _, _ := unstructured.NestedInt64(o.Fields, s.status...)
	if s.selector != nil {
		selector, _, _ = unstructured.NestedString(o.Fields, s.selector...)
	}
	return int32(desired), int32(actual), selector
}

// validateSpec and validateStatus check the values that the object's Scale would have.
func (s *scale) validateSpec(o *Object) field.ErrorList {
	return validateReplicas(o, s.paths.SpecReplicasPath, s.spec)
}

func (s *scale) validateStatus(o *Object) field.ErrorList {
	errs := validateReplicas(o, s.paths.StatusReplicasPath, s.status)
	if s.selector != nil {
		if text, _, err := unstructured.NestedString(o.Fields, s.selector...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(*s.paths.LabelSelectorPath), text, err.Error()))
		}
	}
	return errs
}

func validateReplicas(o *Object, path string, names []string) field.ErrorList {
	replicas, _, err := unstructured.NestedInt64(o.Fields, names...)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(field.NewPath(path), replicas, err.Error())}
	case replicas < 0:
		return field.ErrorList{field.Invalid(field.NewPath(path), replicas, "should be a non-negative integer")}
	case replicas > math.MaxInt32:
		return field.ErrorList{field.Invalid(field.NewPath(path), replicas,
			fmt.Sprintf("should be less than or equal to %v", math.MaxInt32))}
	}
	return nil
}
