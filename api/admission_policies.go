package api

import (
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func validatingPolicies() *Resource {
	return &Resource{
		Group: admissionGroup, Version: "v1", Kind: "ValidatingAdmissionPolicy", Plural: "validatingadmissionpolicies",
		Categories:  []string{"api-extensions"},
		New:         func() Object { return &admissionv1.ValidatingAdmissionPolicy{} },
		NewList:     func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyList{} },
		Conditional: true,

		Default: with(func(p *admissionv1.ValidatingAdmissionPolicy) {
			setDefaultPtr(&p.Spec.FailurePolicy, admissionv1.Fail)
			defaultMatch(p.Spec.MatchConstraints)
		}),
		Validate: checked(validateValidatingPolicy),
		Status: statusOf(
			func(p *admissionv1.ValidatingAdmissionPolicy) *admissionv1.ValidatingAdmissionPolicyStatus {
				return &p.Status
			},
			(*admissionv1.ValidatingAdmissionPolicyStatus).DeepCopy,
		),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Validations", "integer", "Validations indicates the number of validation rules defined in this configuration"),
			column("ParamKind", "string", admissionv1.ValidatingAdmissionPolicySpec{}.SwaggerDoc()["paramKind"]),
			ageColumn,
		},
		Cells: row(func(p *admissionv1.ValidatingAdmissionPolicy) []any {
			return []any{p.Name, int64(len(p.Spec.Validations)), paramKindCell(p.Spec.ParamKind), age(p.CreationTimestamp)}
		}),
	}
}

func paramKindCell(k *admissionv1.ParamKind) string {
	if k == nil {
		return unset
	}
	return k.APIVersion + "/" + k.Kind
}

func defaultMatch(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	setDefaultPtr(&m.MatchPolicy, admissionv1.Equivalent)
	setDefaultPtr(&m.NamespaceSelector, metav1.LabelSelector{})
	setDefaultPtr(&m.ObjectSelector, metav1.LabelSelector{})
	for _, rules := range [][]admissionv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			setDefaultPtr(&rules[i].Scope, admissionv1.AllScopes)
		}
	}
}

func validateMatch(m *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	if m.MatchPolicy != nil {
		errs = append(errs, oneOf(path.Child("matchPolicy"), *m.MatchPolicy, admissionv1.Equivalent, admissionv1.Exact)...)
	}
	errs = append(errs, selector(m.NamespaceSelector, path.Child("namespaceSelector"))...)
	errs = append(errs, selector(m.ObjectSelector, path.Child("objectSelector"))...)
	for i := range m.ResourceRules {
		errs = append(errs, validateAdmissionRule(&m.ResourceRules[i].RuleWithOperations, path.Child("resourceRules").Index(i))...)
	}
	for i := range m.ExcludeResourceRules {
		errs = append(errs, validateAdmissionRule(&m.ExcludeResourceRules[i].RuleWithOperations, path.Child("excludeResourceRules").Index(i))...)
	}
	return errs
}

// constrained wants a policy to say what it is about.
func constrained(m *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	if m == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := validateMatch(m, path)
	if len(m.ResourceRules) == 0 {
		errs = append(errs, field.Required(path.Child("resourceRules"), ""))
	}
	return errs
}

func validateValidatingPolicy(p *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
	path, spec := field.NewPath("spec"), &p.Spec
	errs := constrained(spec.MatchConstraints, path.Child("matchConstraints"))
	if f := spec.FailurePolicy; f != nil {
		errs = append(errs, oneOf(path.Child("failurePolicy"), *f, admissionv1.Fail, admissionv1.Ignore)...)
	}
	errs = append(errs, validateParamKind(spec.ParamKind, path.Child("paramKind"))...)
	if len(spec.Validations)+len(spec.AuditAnnotations) == 0 {
		errs = append(errs, field.Required(path.Child("validations"), "validations or auditAnnotations must contain at least one item"))
	}
	for i, v := range spec.Validations {
		at := path.Child("validations").Index(i)
		if strings.TrimSpace(v.Expression) == "" {
			errs = append(errs, field.Required(at.Child("expression"), "expression is not specified"))
		}
		if v.Message != "" && strings.ContainsAny(v.Message, "\n") {
			errs = append(errs, field.Invalid(at.Child("message"), v.Message, "message must not contain line breaks"))
		}
	}
	return errs
}

func validateParamKind(k *admissionv1.ParamKind, path *field.Path) field.ErrorList {
	if k == nil {
		return nil
	}
	return append(required(path.Child("apiVersion"), k.APIVersion), required(path.Child("kind"), k.Kind)...)
}

func validatingPolicyBindings() *Resource {
	return &Resource{
		Group: admissionGroup, Version: "v1", Kind: "ValidatingAdmissionPolicyBinding", Plural: "validatingadmissionpolicybindings",
		Categories:  []string{"api-extensions"},
		New:         func() Object { return &admissionv1.ValidatingAdmissionPolicyBinding{} },
		NewList:     func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyBindingList{} },
		Conditional: true,

		Default: with(func(b *admissionv1.ValidatingAdmissionPolicyBinding) { defaultMatch(b.Spec.MatchResources) }),
		Validate: checked(func(b *admissionv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
			path := field.NewPath("spec")
			errs := required(path.Child("policyName"), b.Spec.PolicyName)
			errs = append(errs, validateParamRef(b.Spec.ParamRef, path.Child("paramRef"))...)
			errs = append(errs, validateMatch(b.Spec.MatchResources, path.Child("matchResources"))...)
			at := path.Child("validationActions")
			if len(b.Spec.ValidationActions) == 0 {
				errs = append(errs, field.Required(at, "at least one validation action is required"))
			}
			seen := map[admissionv1.ValidationAction]bool{}
			for i, a := range b.Spec.ValidationActions {
				errs = append(errs, oneOf(at.Index(i), a, admissionv1.Audit, admissionv1.Deny, admissionv1.Warn)...)
				if seen[a] {
					errs = append(errs, field.Duplicate(at.Index(i), a))
				}
				seen[a] = true
			}
			if seen[admissionv1.Deny] && seen[admissionv1.Warn] {
				errs = append(errs, field.Invalid(at, b.Spec.ValidationActions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
			}
			return errs
		}),
		Generation: true,

		Columns: policyBindingColumns,
		Cells: row(func(b *admissionv1.ValidatingAdmissionPolicyBinding) []any {
			return []any{b.Name, b.Spec.PolicyName, paramRefCell(b.Spec.ParamRef), age(b.CreationTimestamp)}
		}),
	}
}

var policyBindingColumns = []metav1.TableColumnDefinition{
	nameColumn,
	column("PolicyName", "string", admissionv1.ValidatingAdmissionPolicyBindingSpec{}.SwaggerDoc()["policyName"]),
	column("ParamRef", "string", admissionv1.ValidatingAdmissionPolicyBindingSpec{}.SwaggerDoc()["paramRef"]),
	ageColumn,
}

func paramRefCell(ref *admissionv1.ParamRef) string {
	switch {
	case ref == nil:
		return unset
	case ref.Name == "":
		return "*/*"
	case ref.Namespace == "":
		return "*/" + ref.Name
	default:
		return ref.Namespace + "/" + ref.Name
	}
}

func validateParamRef(ref *admissionv1.ParamRef, path *field.Path) field.ErrorList {
	if ref == nil {
		return nil
	}
	var errs field.ErrorList
	switch {
	case ref.Name == "" && ref.Selector == nil:
		errs = append(errs, field.Required(path, "one of name or selector must be specified"))
	case ref.Name != "" && ref.Selector != nil:
		errs = append(errs, field.Forbidden(path.Child("name"), "name and selector are mutually exclusive"))
	}
	errs = append(errs, selector(ref.Selector, path.Child("selector"))...)
	return append(errs, requiredOneOf(path.Child("parameterNotFoundAction"), ptr.Deref(ref.ParameterNotFoundAction, ""), admissionv1.AllowAction, admissionv1.DenyAction)...)
}

func mutatingPolicies() *Resource {
	return &Resource{
		Group: admissionGroup, Version: "v1", Kind: "MutatingAdmissionPolicy", Plural: "mutatingadmissionpolicies",
		Categories:  []string{"api-extensions"},
		New:         func() Object { return &admissionv1.MutatingAdmissionPolicy{} },
		NewList:     func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyList{} },
		Conditional: true,

		Default: with(func(p *admissionv1.MutatingAdmissionPolicy) {
			setDefaultPtr(&p.Spec.FailurePolicy, admissionv1.Fail)
			defaultMatch(p.Spec.MatchConstraints)
		}),
		Validate:   checked(validateMutatingPolicy),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Mutations", "integer", "Mutations indicates the number of mutations rules defined in this configuration"),
			column("ParamKind", "string", admissionv1.MutatingAdmissionPolicySpec{}.SwaggerDoc()["paramKind"]),
			ageColumn,
		},
		Cells: row(func(p *admissionv1.MutatingAdmissionPolicy) []any {
			return []any{p.Name, int64(len(p.Spec.Mutations)), paramKindCell(p.Spec.ParamKind), age(p.CreationTimestamp)}
		}),
	}
}

func validateMutatingPolicy(p *admissionv1.MutatingAdmissionPolicy) field.ErrorList {
	path := field.NewPath("spec")
	errs := constrained(p.Spec.MatchConstraints, path.Child("matchConstraints"))
	errs = append(errs, validateParamKind(p.Spec.ParamKind, path.Child("paramKind"))...)
	errs = append(errs, requiredOneOf(path.Child("reinvocationPolicy"), p.Spec.ReinvocationPolicy,
		admissionv1.IfNeededReinvocationPolicy, admissionv1.NeverReinvocationPolicy)...)
	at := path.Child("mutations")
	if len(p.Spec.Mutations) == 0 {
		errs = append(errs, field.Required(at, "mutations must contain at least one item"))
	}
	for i, m := range p.Spec.Mutations {
		at := at.Index(i)
		errs = append(errs, requiredOneOf(at.Child("patchType"), m.PatchType, admissionv1.PatchTypeApplyConfiguration, admissionv1.PatchTypeJSONPatch)...)
		if m.PatchType == admissionv1.PatchTypeApplyConfiguration && m.ApplyConfiguration == nil {
			errs = append(errs, field.Required(at.Child("applyConfiguration"), ""))
		}
		if m.PatchType == admissionv1.PatchTypeJSONPatch && m.JSONPatch == nil {
			errs = append(errs, field.Required(at.Child("jsonPatch"), ""))
		}
	}
	return errs
}

func mutatingPolicyBindings() *Resource {
	return &Resource{
		Group: admissionGroup, Version: "v1", Kind: "MutatingAdmissionPolicyBinding", Plural: "mutatingadmissionpolicybindings",
		Categories:  []string{"api-extensions"},
		New:         func() Object { return &admissionv1.MutatingAdmissionPolicyBinding{} },
		NewList:     func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyBindingList{} },
		Conditional: true,

		Default: with(func(b *admissionv1.MutatingAdmissionPolicyBinding) { defaultMatch(b.Spec.MatchResources) }),
		Validate: checked(func(b *admissionv1.MutatingAdmissionPolicyBinding) field.ErrorList {
			path := field.NewPath("spec")
			errs := required(path.Child("policyName"), b.Spec.PolicyName)
			errs = append(errs, validateParamRef(b.Spec.ParamRef, path.Child("paramRef"))...)
			return append(errs, validateMatch(b.Spec.MatchResources, path.Child("matchResources"))...)
		}),
		Generation: true,

		Columns: policyBindingColumns,
		Cells: row(func(b *admissionv1.MutatingAdmissionPolicyBinding) []any {
			return []any{b.Name, b.Spec.PolicyName, paramRefCell(b.Spec.ParamRef), age(b.CreationTimestamp)}
		}),
	}
}
