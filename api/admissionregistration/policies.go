package admissionregistration

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func validatingPolicies() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: admissionGroup, Version: "v1", Kind: "ValidatingAdmissionPolicy",
			Plural:     "validatingadmissionpolicies",
			Categories: []string{"api-extensions"},
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &admissionv1.ValidatingAdmissionPolicy{} },
			NewList:        func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyList{} },
		},
		Strategy: api.Strategy{
			Conditional:     true,
			GenericMetadata: true,
			Default: api.Typed(func(p *admissionv1.ValidatingAdmissionPolicy) {
				defaults.SetPtr(&p.Spec.FailurePolicy, admissionv1.Fail)
				defaultMatch(p.Spec.MatchConstraints)
			}),
			Validate: api.Check(validateValidatingPolicy),
			ValidateCreate: api.Check(func(p *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
				return validateValidatingExpressions(p, nil)
			}),
			ValidateUpdate: api.CheckUpdate(validateValidatingExpressions),
			Status: api.StatusOf(
				func(p *admissionv1.ValidatingAdmissionPolicy) *admissionv1.ValidatingAdmissionPolicyStatus {
					return &p.Status
				},
				(*admissionv1.ValidatingAdmissionPolicyStatus).DeepCopy,
			).CheckedBy(api.CheckUpdate(validatePolicyStatus)),
			Generation: true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Validations", "integer",
					"Validations indicates the number of validation rules defined in this configuration"),
				table.Column("ParamKind", "string",
					"ParamKind specifies the kind of resources used to parameterize this policy"),
				table.Age,
			},
			Cells: api.Row(func(p *admissionv1.ValidatingAdmissionPolicy) []any {
				return []any{p.Name, int64(len(p.Spec.Validations)), paramKindCell(p.Spec.ParamKind),
					table.AgeOf(p.CreationTimestamp)}
			}),
		},
	}
}

func paramKindCell(k *admissionv1.ParamKind) string {
	if k == nil {
		return table.Unset
	}
	return k.APIVersion + "/" + k.Kind
}

func defaultMatch(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	defaults.SetPtr(&m.MatchPolicy, admissionv1.Equivalent)
	defaults.SetPtr(&m.NamespaceSelector, metav1.LabelSelector{})
	defaults.SetPtr(&m.ObjectSelector, metav1.LabelSelector{})
	for _, rules := range [][]admissionv1.NamedRuleWithOperations{m.ResourceRules, m.ExcludeResourceRules} {
		for i := range rules {
			defaults.SetPtr(&rules[i].Scope, admissionv1.AllScopes)
		}
	}
}

func validateMatch(m *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	if m.MatchPolicy == nil {
		errs = append(errs, field.Required(path.Child("matchPolicy"), ""))
	} else {
		errs = append(errs, validate.OneOf(path.Child("matchPolicy"), *m.MatchPolicy, admissionv1.Equivalent,
			admissionv1.Exact)...)
	}
	for _, s := range []struct {
		name string
		*metav1.LabelSelector
	}{{"namespaceSelector", m.NamespaceSelector}, {"objectSelector", m.ObjectSelector}} {
		if s.LabelSelector == nil {
			errs = append(errs, field.Required(path.Child(s.name), ""))
		} else {
			errs = append(errs, validate.Selector(s.LabelSelector, path.Child(s.name))...)
		}
	}
	for i := range m.ResourceRules {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateNamedRule(&m.ResourceRules[i], path.Child("resourceRules").Index(i))...)
	}
	for i := range m.ExcludeResourceRules {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateNamedRule(&m.ExcludeResourceRules[i],
			path.Child("excludeResourceRules").Index(i))...)
	}
	return errs
}

func validateNamedRule(r *admissionv1.NamedRuleWithOperations, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var before validate.Seen
	for i, name := range r.ResourceNames {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("resourceNames").Index(i)
		errs = append(errs, validate.Segment(idxPath, name)...)
		if validate.Repeated(&before, r.ResourceNames[:i], name) {
			errs = append(errs, field.Duplicate(idxPath, name))
		}
	}
	return append(errs, validateAdmissionRule(&r.RuleWithOperations, path)...)
}

// policy has the parts that the two types of admission policy share.
type policy struct {
	failure    *admissionv1.FailurePolicyType
	param      *admissionv1.ParamKind
	match      *admissionv1.MatchResources
	conditions []admissionv1.MatchCondition
	variables  []admissionv1.Variable
}

// validatePolicy makes all checks of a policy but leaves its expressions to expressions.go.
func validatePolicy(p policy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if fldPath := path.Child("failurePolicy"); p.failure == nil {
		errs = append(errs, field.Required(fldPath, ""))
	} else {
		errs = append(errs, validate.OneOf(fldPath, *p.failure, admissionv1.Fail, admissionv1.Ignore)...)
	}
	errs = append(errs, validateParamKind(p.param, path.Child("paramKind"))...)
	if fldPath := path.Child("matchConstraints"); p.match == nil {
		errs = append(errs, field.Required(fldPath, ""))
	} else {
		errs = append(errs, validateMatch(p.match, fldPath)...)
		if len(p.match.ResourceRules) == 0 {
			errs = append(errs, field.Required(fldPath.Child("resourceRules"), ""))
		}
	}
	errs = append(errs, validateMatchConditions(p.conditions, path.Child("matchConditions"))...)
	for i, v := range p.variables {
		if field.Enough(errs) {
			break
		}
		fldPath := path.Child("variables").Index(i)
		if strings.TrimSpace(v.Name) == "" {
			errs = append(errs, field.Required(fldPath.Child("name"), "name is not specified"))
		} else if !celIdentifier(v.Name) {
			errs = append(errs, field.Invalid(fldPath.Child("name"), v.Name, "must be a valid CEL identifier"))
		}
		if strings.TrimSpace(v.Expression) == "" {
			errs = append(errs, field.Required(fldPath.Child("expression"), "expression is not specified"))
		}
	}
	return errs
}

var (
	celName  = regexp.MustCompile(`^[_a-zA-Z][_a-zA-Z0-9]*$`)
	celWords = []string{"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for",
		"function", "if",
		"import", "let", "loop", "package", "namespace", "return", "var", "void", "while"}
)

// celIdentifier reports whether a name is an identifier in CEL's grammar.
func celIdentifier(name string) bool {
	return celName.MatchString(name) && !slices.Contains(celWords, name)
}

func validateValidatingPolicy(p *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
	path, spec := field.NewPath("spec"), &p.Spec
	errs := validatePolicy(policy{spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, spec.MatchConditions,
		spec.Variables}, path)
	if len(spec.Validations)+len(spec.AuditAnnotations) == 0 {
		const detail = "validations or auditAnnotations must contain at least one item"
		return append(errs, field.Required(path.Child("validations"), detail),
			field.Required(path.Child("auditAnnotations"), detail))
	}
	for i := range spec.Validations {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateValidation(&spec.Validations[i], path.Child("validations").Index(i))...)
	}
	return append(errs, validateAuditAnnotations(p.Name, spec.AuditAnnotations, path.Child("auditAnnotations"))...)
}

func validateValidation(v *admissionv1.Validation, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if strings.TrimSpace(v.Expression) == "" {
		errs = append(errs, field.Required(path.Child("expression"), "expression is not specified"))
	}
	if v.MessageExpression != "" && strings.TrimSpace(v.MessageExpression) == "" {
		errs = append(errs, field.Invalid(path.Child("messageExpression"), v.MessageExpression,
			"must be non-empty if specified"))
	}
	switch message := strings.TrimSpace(v.Message); {
	case v.Message != "" && message == "":
		errs = append(errs, field.Invalid(path.Child("message"), v.Message, "must be non-empty if specified"))
	case strings.ContainsAny(message, "\n\r"):
		errs = append(errs, field.Invalid(path.Child("message"), v.Message, "must not contain line breaks"))
	}
	if v.Reason != nil {
		errs = append(errs, validate.OneOf(path.Child("reason"), *v.Reason, metav1.StatusReasonForbidden,
			metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge)...)
	}
	return errs
}

// longestAuditExpression is in bytes. The expression's result may be twice as long.
const longestAuditExpression = 5 << 10

// validateAuditAnnotations checks the keys together with the policy's name, which qualifies them.
func validateAuditAnnotations(name string, list []admissionv1.AuditAnnotation, path *field.Path) field.ErrorList {
	const maxAnnotations = 20
	var errs field.ErrorList
	if len(list) > maxAnnotations {
		errs = append(errs,
			field.Invalid(path, list, fmt.Sprintf("must not have more than %d auditAnnotations", maxAnnotations)))
	}
	var before validate.Seen
	for i, a := range list {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Index(i)
		if name == "" {
			errs = append(errs, field.Invalid(idxPath.Child("key"), a.Key, "requires metadata.name be non-empty"))
		} else {
			errs = append(errs, validate.QualifiedName(idxPath.Child("key"), name+"/"+a.Key)...)
		}
		if value := strings.TrimSpace(a.ValueExpression); value == "" {
			errs = append(errs, field.Required(idxPath.Child("valueExpression"), "valueExpression is not specified"))
		} else if len(value) > longestAuditExpression {
			errs = append(errs,
				field.Required(idxPath.Child("valueExpression"), fmt.Sprintf("must not exceed %d bytes in length",
					longestAuditExpression)))
		}
		if validate.RepeatedBy(&before, list[:i], a.Key, func(o *admissionv1.AuditAnnotation) string { return o.Key }) {
			errs = append(errs, field.Duplicate(idxPath.Child("key"), a.Key))
		}
	}
	return errs
}

func validateParamKind(k *admissionv1.ParamKind, path *field.Path) field.ErrorList {
	if k == nil {
		return nil
	}
	var errs field.ErrorList
	apiVersionPath := path.Child("apiVersion")
	if gv, err := schema.ParseGroupVersion(k.APIVersion); k.APIVersion == "" {
		errs = append(errs, field.Required(apiVersionPath, ""))
	} else if err != nil {
		errs = append(errs, field.Invalid(apiVersionPath, k.APIVersion, err.Error()))
	} else {
		if complaints := naming.IsDNS1123Subdomain(gv.Group); gv.Group != "" && len(complaints) > 0 {
			errs = append(errs, field.Invalid(apiVersionPath, gv.Group, strings.Join(complaints, ",")))
		}
		if complaints := utilvalidation.IsDNS1035Label(gv.Version); gv.Version == "" {
			errs = append(errs, field.Invalid(apiVersionPath, k.APIVersion, "version must be specified"))
		} else if len(complaints) > 0 {
			errs = append(errs, field.Invalid(apiVersionPath, gv.Version, strings.Join(complaints, ",")))
		}
	}
	if complaints := utilvalidation.IsDNS1035Label(strings.ToLower(k.Kind)); k.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), ""))
	} else if len(complaints) > 0 {
		errs = append(errs,
			field.Invalid(path.Child("kind"), k.Kind, "may have mixed case, but should otherwise match: "+
				strings.Join(complaints, ",")))
	}
	return errs
}

// validatePolicyStatus checks the warnings of the type checker.
func validatePolicyStatus(p, _ *admissionv1.ValidatingAdmissionPolicy) field.ErrorList {
	path := field.NewPath("status")
	errs := metav1validation.ValidateConditions(p.Status.Conditions, path.Child("conditions").Plain())
	if p.Status.TypeChecking == nil {
		return errs
	}
	for i, w := range p.Status.TypeChecking.ExpressionWarnings {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("typeChecking", "expressionWarnings").Index(i)
		errs = append(errs, validate.Required(idxPath.Child("warning"), w.Warning)...)
		errs = append(errs, validate.Required(idxPath.Child("fieldRef"), strings.TrimSpace(w.FieldRef))...)
	}
	return errs
}

func validatingPolicyBindings() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: admissionGroup, Version: "v1", Kind: "ValidatingAdmissionPolicyBinding",
			Plural:     "validatingadmissionpolicybindings",
			Categories: []string{"api-extensions"},
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &admissionv1.ValidatingAdmissionPolicyBinding{} },
			NewList:        func() runtime.Object { return &admissionv1.ValidatingAdmissionPolicyBindingList{} },
		},
		Strategy: api.Strategy{
			Conditional:     true,
			GenericMetadata: true,
			Default: api.Typed(func(b *admissionv1.ValidatingAdmissionPolicyBinding) {
				defaultMatch(b.Spec.MatchResources)
			}),
			Validate: api.Check(func(b *admissionv1.ValidatingAdmissionPolicyBinding) field.ErrorList {
				path := field.NewPath("spec")
				errs := validate.RequiredSubdomain(path.Child("policyName"), b.Spec.PolicyName)
				errs = append(errs, validateParamRef(b.Spec.ParamRef, path.Child("paramRef"))...)
				errs = append(errs, validateMatch(b.Spec.MatchResources, path.Child("matchResources"))...)
				fldPath := path.Child("validationActions")
				if len(b.Spec.ValidationActions) == 0 {
					errs = append(errs, field.Required(fldPath, "at least one validation action is required"))
				}
				seen := map[admissionv1.ValidationAction]bool{}
				for i, a := range b.Spec.ValidationActions {
					errs = append(errs, validate.OneOf(fldPath.Index(i), a, admissionv1.Audit, admissionv1.Deny,
						admissionv1.Warn)...)
					if seen[a] {
						errs = append(errs, field.Duplicate(fldPath.Index(i), a))
					}
					seen[a] = true
				}
				if seen[admissionv1.Deny] && seen[admissionv1.Warn] {
					errs = append(errs,
						field.Invalid(fldPath, b.Spec.ValidationActions, "must not contain both Deny and "+
							"Warn (repeating the same validation failure information in the API response and headers "+
							"serves no purpose)"))
				}
				return errs
			}),
			Generation: true,
		},
		Table: api.Table{
			Columns: policyBindingColumns,
			Cells: api.Row(func(b *admissionv1.ValidatingAdmissionPolicyBinding) []any {
				return []any{b.Name, b.Spec.PolicyName, paramRefCell(b.Spec.ParamRef), table.AgeOf(b.CreationTimestamp)}
			}),
		},
	}
}

var policyBindingColumns = []metav1.TableColumnDefinition{
	table.Name,
	table.Column("PolicyName", "string",
		"PolicyName indicates the policy definition which the policy binding binded to"),
	table.Column("ParamRef", "string", "ParamRef indicates the param resource which sets the configration param"),
	table.Age,
}

func paramRefCell(ref *admissionv1.ParamRef) string {
	switch {
	case ref == nil, ref.Name == "" && ref.Selector == nil:
		return table.Unset
	case ref.Name == "":
		return ref.Selector.String()
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
	if ref.Name != "" {
		errs = append(errs, validate.Segment(path.Child("name"), ref.Name)...)
	}
	switch {
	case ref.Name == "" && ref.Selector == nil:
		errs = append(errs, field.Required(path, "one of name or selector must be specified"))
	case ref.Name != "" && ref.Selector != nil:
		const detail = "name and selector are mutually exclusive"
		errs = append(errs, field.Forbidden(path.Child("name"), detail),
			field.Forbidden(path.Child("selector"), detail))
	}
	errs = append(errs, validate.Selector(ref.Selector, path.Child("selector"))...)
	return append(errs, validate.RequiredOneOf(path.Child("parameterNotFoundAction"),
		ptr.Deref(ref.ParameterNotFoundAction, ""), admissionv1.AllowAction, admissionv1.DenyAction)...)
}

func mutatingPolicies() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: admissionGroup, Version: "v1", Kind: "MutatingAdmissionPolicy", Plural: "mutatingadmissionpolicies",
			Categories: []string{"api-extensions"},
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &admissionv1.MutatingAdmissionPolicy{} },
			NewList:        func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyList{} },
		},
		Strategy: api.Strategy{
			Conditional:     true,
			GenericMetadata: true,
			Default: api.Typed(func(p *admissionv1.MutatingAdmissionPolicy) {
				defaults.SetPtr(&p.Spec.FailurePolicy, admissionv1.Fail)
				defaultMatch(p.Spec.MatchConstraints)
			}),
			Validate: api.Check(validateMutatingPolicy),
			ValidateCreate: api.Check(func(p *admissionv1.MutatingAdmissionPolicy) field.ErrorList {
				return validateMutatingExpressions(p, nil)
			}),
			ValidateUpdate: api.CheckUpdate(validateMutatingExpressions),
			Generation:     true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Mutations", "integer",
					"Mutation indicates the number of mutations rules defined in this configuration"),
				table.Column("ParamKind", "string",
					"ParamKind specifies the kind of resources used to parameterize this policy"),
				table.Age,
			},
			Cells: api.Row(func(p *admissionv1.MutatingAdmissionPolicy) []any {
				return []any{p.Name, int64(len(p.Spec.Mutations)), paramKindCell(p.Spec.ParamKind),
					table.AgeOf(p.CreationTimestamp)}
			}),
		},
	}
}

func validateMutatingPolicy(p *admissionv1.MutatingAdmissionPolicy) field.ErrorList {
	path, spec := field.NewPath("spec"), &p.Spec
	errs := validatePolicy(policy{spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, spec.MatchConditions,
		spec.Variables}, path)
	errs = append(errs, mutable(spec.MatchConstraints, path.Child("matchConstraints"))...)
	errs = append(errs, validate.RequiredOneOf(path.Child("reinvocationPolicy"), spec.ReinvocationPolicy,
		admissionv1.IfNeededReinvocationPolicy, admissionv1.NeverReinvocationPolicy)...)
	if len(spec.Mutations) == 0 {
		errs = append(errs, field.Required(path.Child("mutations"), "mutations must contain at least one item"))
	}
	for i := range spec.Mutations {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateMutation(&spec.Mutations[i], path.Child("mutations").Index(i))...)
	}
	return errs
}

// mutable rejects rules about deletions, since a deleted object cannot be mutated.
func mutable(m *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	for _, r := range m.ResourceRules {
		if field.Enough(errs) {
			break
		}
		for _, o := range r.Operations {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, validate.OneOf(path.Child("resourceRules", "operations"), o, admissionv1.OperationAll,
				admissionv1.Connect, admissionv1.Create, admissionv1.Update)...)
		}
	}
	return errs
}

func validateMutation(m *admissionv1.Mutation, path *field.Path) field.ErrorList {
	errs := validate.RequiredOneOf(path.Child("patchType"), m.PatchType, admissionv1.PatchTypeApplyConfiguration,
		admissionv1.PatchTypeJSONPatch)
	if len(errs) > 0 {
		return errs
	}
	for _, part := range []struct {
		patchType  admissionv1.PatchType
		name       string
		set        bool
		expression func() string
	}{
		{admissionv1.PatchTypeJSONPatch, "jsonPatch", m.JSONPatch != nil, func() string {
			return m.JSONPatch.Expression
		}},
		{admissionv1.PatchTypeApplyConfiguration, "applyConfiguration", m.ApplyConfiguration != nil, func() string {
			return m.ApplyConfiguration.Expression
		}},
	} {
		fldPath := path.Child(part.name)
		switch {
		case part.patchType == m.PatchType && !part.set:
			errs = append(errs, field.Required(fldPath, "must be specified when patchType is "+string(m.PatchType)))
		case part.patchType == m.PatchType && strings.TrimSpace(part.expression()) == "":
			errs = append(errs, field.Required(fldPath.Child("expression"), ""))
		case part.patchType != m.PatchType && part.set:
			errs = append(errs, field.Invalid(fldPath, "{"+part.name+"}", "must not be specified when patchType is "+
				string(m.PatchType)))
		}
	}
	return errs
}

func mutatingPolicyBindings() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: admissionGroup, Version: "v1", Kind: "MutatingAdmissionPolicyBinding",
			Plural:     "mutatingadmissionpolicybindings",
			Categories: []string{"api-extensions"},
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &admissionv1.MutatingAdmissionPolicyBinding{} },
			NewList:        func() runtime.Object { return &admissionv1.MutatingAdmissionPolicyBindingList{} },
		},
		Strategy: api.Strategy{
			Conditional:     true,
			GenericMetadata: true,
			Default: api.Typed(func(b *admissionv1.MutatingAdmissionPolicyBinding) {
				defaultMatch(b.Spec.MatchResources)
			}),
			Validate: api.Check(func(b *admissionv1.MutatingAdmissionPolicyBinding) field.ErrorList {
				path := field.NewPath("spec")
				errs := validate.RequiredSubdomain(path.Child("policyName"), b.Spec.PolicyName)
				errs = append(errs, validateParamRef(b.Spec.ParamRef, path.Child("paramRef"))...)
				errs = append(errs, validateMatch(b.Spec.MatchResources, path.Child("matchResources"))...)
				return append(errs, mutable(b.Spec.MatchResources, path.Child("matchResources"))...)
			}),
			Generation: true,
		},
		Table: api.Table{
			Columns: policyBindingColumns,
			Cells: api.Row(func(b *admissionv1.MutatingAdmissionPolicyBinding) []any {
				return []any{b.Name, b.Spec.PolicyName, paramRefCell(b.Spec.ParamRef), table.AgeOf(b.CreationTimestamp)}
			}),
		},
	}
}
