package authorization

import (
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

// The reviews of authorization.k8s.io: the access of any user, the caller's own access, and the caller's own rules
// (kubectl auth can-i).

func subjectAccessReviews() *api.Resource {
	return api.CreateOnlyOf(api.Resource{
		Names: api.Names{
			Group: authorizationv1.GroupName, Version: "v1", Kind: "SubjectAccessReview",
			Plural: "subjectaccessreviews",
		},
		Storage: api.Storage{New: func() api.Object { return &authorizationv1.SubjectAccessReview{} }},
		Strategy: api.Strategy{
			Validate: api.Check(func(r *authorizationv1.SubjectAccessReview) field.ErrorList {
				return validateSubjectAccess(&r.Spec)
			}),
		},
	})
}

func localSubjectAccessReviews() *api.Resource {
	return api.CreateOnlyOf(api.Resource{
		Names: api.Names{
			Group: authorizationv1.GroupName, Version: "v1", Kind: "LocalSubjectAccessReview",
			Plural:     "localsubjectaccessreviews",
			Namespaced: true,
		},
		Storage: api.Storage{
			New: func() api.Object { return &authorizationv1.LocalSubjectAccessReview{} },
		},
		Strategy: api.Strategy{
			Validate: api.Check(func(r *authorizationv1.LocalSubjectAccessReview) field.ErrorList {
				errs := validateSubjectAccess(&r.Spec)
				spec := field.NewPath("spec")
				if on := r.Spec.ResourceAttributes; on != nil && on.Namespace != r.Namespace {
					errs = append(errs, field.Invalid(spec.Child("resourceAttributes", "namespace"), on.Namespace,
						"must match metadata.namespace"))
				}
				if r.Spec.NonResourceAttributes != nil {
					errs = append(errs, field.Invalid(spec.Child("nonResourceAttributes"), r.Spec.NonResourceAttributes,
						"disallowed on this kind of request"))
				}
				return errs
			}),
		},
	})
}

func selfSubjectAccessReviews() *api.Resource {
	return api.CreateOnlyOf(api.Resource{
		Names: api.Names{
			Group: authorizationv1.GroupName, Version: "v1", Kind: "SelfSubjectAccessReview",
			Plural: "selfsubjectaccessreviews",
		},
		Storage: api.Storage{
			New: func() api.Object { return &authorizationv1.SelfSubjectAccessReview{} },
		},
		Strategy: api.Strategy{
			Validate: api.Check(func(r *authorizationv1.SelfSubjectAccessReview) field.ErrorList {
				return validateAccess(r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
			}),
		},
	})
}

func selfSubjectRulesReviews() *api.Resource {
	return api.CreateOnlyOf(api.Resource{
		Names: api.Names{
			Group: authorizationv1.GroupName, Version: "v1", Kind: "SelfSubjectRulesReview",
			Plural: "selfsubjectrulesreviews",
		},
		Storage: api.Storage{New: func() api.Object { return &authorizationv1.SelfSubjectRulesReview{} }},
		Strategy: api.Strategy{
			Validate: api.Check(func(r *authorizationv1.SelfSubjectRulesReview) field.ErrorList {
				return validate.Required(field.NewPath("spec", "namespace"), r.Spec.Namespace)
			}),
		},
	})
}

func validateSubjectAccess(spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateAccess(spec.ResourceAttributes, spec.NonResourceAttributes)
	if spec.User == "" && len(spec.Groups) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "user"), spec.User,
			"at least one of user or group must be specified"))
	}
	return errs
}

func validateAccess(resource *authorizationv1.ResourceAttributes,
	nonResource *authorizationv1.NonResourceAttributes) field.ErrorList {
	spec := field.NewPath("spec")
	switch {
	case resource != nil && nonResource != nil:
		return field.ErrorList{field.Invalid(spec.Child("nonResourceAttributes"), nonResource,
			"cannot be specified in combination with resourceAttributes")}
	case resource == nil && nonResource == nil:
		return field.ErrorList{field.Invalid(spec.Child("resourceAttributes"), resource,
			"exactly one of nonResourceAttributes or resourceAttributes must be specified")}
	case resource != nil:
		path := spec.Child("resourceAttributes")
		return append(validateFieldSelector(resource.FieldSelector, path.Child("fieldSelector")),
			validateLabelSelector(resource.LabelSelector, path.Child("labelSelector"))...)
	}
	return nil
}

// The requirements of selectors are checked as strictly as in pkg/apis/authorization/validation of Kubernetes: clients
// may be newer, so the authorizers ignore an operator that this server does not support.

func validateFieldSelector(s *authorizationv1.FieldSelectorAttributes, path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := validateForms(s.RawSelector, len(s.Requirements), path)
	o := metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
	for i := range s.Requirements {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(s.Requirements[i], o,
			path.Child("requirements").Index(i).Plain())...)
	}
	return errs
}

func validateLabelSelector(s *authorizationv1.LabelSelectorAttributes, path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := validateForms(s.RawSelector, len(s.Requirements), path)
	o := metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
	for i := range s.Requirements {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(s.Requirements[i], o,
			path.Child("requirements").Index(i).Plain())...)
	}
	return errs
}

// validateForms requires exactly one of the two forms of a selector.
func validateForms(raw string, requirements int, path *field.Path) field.ErrorList {
	switch {
	case raw != "" && requirements > 0:
		return field.ErrorList{field.Invalid(path.Child("rawSelector"), raw,
			"may not specified at the same time as requirements")}
	case raw == "" && requirements == 0:
		return field.ErrorList{field.Required(path.Child("requirements"),
			"when "+path.String()+" is specified, requirements or rawSelector is required")}
	}
	return nil
}
