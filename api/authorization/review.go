package authorization

import (
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

// The questions of authorization.k8s.io: may someone, may I, what may I (kubectl auth can-i).

func subjectAccessReviews() *api.Resource {
	return api.ReviewOf(api.Resource{
		Group: authorizationv1.GroupName, Version: "v1", Kind: "SubjectAccessReview", Plural: "subjectaccessreviews",
		New: func() api.Object { return &authorizationv1.SubjectAccessReview{} },
		Validate: api.Check(func(r *authorizationv1.SubjectAccessReview) field.ErrorList {
			return validateSubjectAccess(&r.Spec)
		}),
	})
}

func localSubjectAccessReviews() *api.Resource {
	return api.ReviewOf(api.Resource{
		Group: authorizationv1.GroupName, Version: "v1", Kind: "LocalSubjectAccessReview",
		Plural:     "localsubjectaccessreviews",
		Namespaced: true,
		New:        func() api.Object { return &authorizationv1.LocalSubjectAccessReview{} },
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
	})
}

func selfSubjectAccessReviews() *api.Resource {
	return api.ReviewOf(api.Resource{
		Group: authorizationv1.GroupName, Version: "v1", Kind: "SelfSubjectAccessReview",
		Plural: "selfsubjectaccessreviews",
		New:    func() api.Object { return &authorizationv1.SelfSubjectAccessReview{} },
		Validate: api.Check(func(r *authorizationv1.SelfSubjectAccessReview) field.ErrorList {
			return validateAccess(r.Spec.ResourceAttributes, r.Spec.NonResourceAttributes)
		}),
	})
}

func selfSubjectRulesReviews() *api.Resource {
	return api.ReviewOf(api.Resource{
		Group: authorizationv1.GroupName, Version: "v1", Kind: "SelfSubjectRulesReview",
		Plural: "selfsubjectrulesreviews",
		New:    func() api.Object { return &authorizationv1.SelfSubjectRulesReview{} },
		Validate: api.Check(func(r *authorizationv1.SelfSubjectRulesReview) field.ErrorList {
			return validate.Required(field.NewPath("spec", "namespace"), r.Spec.Namespace)
		}),
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

func validateAccess(on *authorizationv1.ResourceAttributes, at *authorizationv1.NonResourceAttributes) field.ErrorList {
	spec := field.NewPath("spec")
	switch {
	case on != nil && at != nil:
		return field.ErrorList{field.Invalid(spec.Child("nonResourceAttributes"), at,
			"cannot be specified in combination with resourceAttributes")}
	case on == nil && at == nil:
		return field.ErrorList{field.Invalid(spec.Child("resourceAttributes"), on,
			"exactly one of nonResourceAttributes or resourceAttributes must be specified")}
	case on != nil && on.FieldSelector != nil && on.FieldSelector.RawSelector != "" &&
		len(on.FieldSelector.Requirements) > 0:
		return field.ErrorList{field.Invalid(spec.Child("resourceAttributes", "fieldSelector", "rawSelector"),
			on.FieldSelector.RawSelector, "may not specified at the same time as requirements")}
	case on != nil && on.LabelSelector != nil && on.LabelSelector.RawSelector != "" &&
		len(on.LabelSelector.Requirements) > 0:
		return field.ErrorList{field.Invalid(spec.Child("resourceAttributes", "labelSelector", "rawSelector"),
			on.LabelSelector.RawSelector, "may not specified at the same time as requirements")}
	}
	return nil
}
