package admissionregistration

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

const admissionGroup = admissionv1.GroupName

func mutatingWebhooks() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: admissionGroup, Version: "v1", Kind: "MutatingWebhookConfiguration",
			Plural:     "mutatingwebhookconfigurations",
			Categories: []string{"api-extensions"},
		},
		Storage: api.Storage{
			New:            func() api.Object { return &admissionv1.MutatingWebhookConfiguration{} },
			NewList:        func() runtime.Object { return &admissionv1.MutatingWebhookConfigurationList{} },
			ReadYourWrites: true,
		},
		Strategy: api.Strategy{
			Conditional:     true,
			GenericMetadata: true,
			Default: api.Typed(func(c *admissionv1.MutatingWebhookConfiguration) {
				for i := range c.Webhooks {
					defaults.SetPtr(&c.Webhooks[i].ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
					defaultWebhook(webhookOf(&c.Webhooks[i]))
				}
			}),
			Validate: api.Check(func(c *admissionv1.MutatingWebhookConfiguration) field.ErrorList {
				hooks := make([]webhook, len(c.Webhooks))
				var errs field.ErrorList
				for i := range c.Webhooks {
					hooks[i] = webhookOf(&c.Webhooks[i])
					if p := c.Webhooks[i].ReinvocationPolicy; p != nil {
						errs = append(errs,
							validate.OneOf(field.NewPath("webhooks").Index(i).Child("reinvocationPolicy"),
								*p, admissionv1.IfNeededReinvocationPolicy, admissionv1.NeverReinvocationPolicy)...)
					}
				}
				return append(errs, validateWebhooks(hooks)...)
			}),
			ValidateCreate: api.Check(func(c *admissionv1.MutatingWebhookConfiguration) field.ErrorList {
				return validateWebhookExpressions(mutatingConditions(c), nil)
			}),
			ValidateUpdate: api.CheckUpdate(func(c, old *admissionv1.MutatingWebhookConfiguration) field.ErrorList {
				return validateWebhookExpressions(mutatingConditions(c), mutatingConditions(old))
			}),
			Generation: true,
		},
		Table: api.Table{
			Columns: webhookColumns,
			Cells: api.Row(func(c *admissionv1.MutatingWebhookConfiguration) []any {
				return []any{c.Name, int64(len(c.Webhooks)), table.AgeOf(c.CreationTimestamp)}
			}),
		},
	}
}

func validatingWebhooks() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: admissionGroup, Version: "v1", Kind: "ValidatingWebhookConfiguration",
			Plural:     "validatingwebhookconfigurations",
			Categories: []string{"api-extensions"},
		},
		Storage: api.Storage{
			New:            func() api.Object { return &admissionv1.ValidatingWebhookConfiguration{} },
			NewList:        func() runtime.Object { return &admissionv1.ValidatingWebhookConfigurationList{} },
			ReadYourWrites: true,
		},
		Strategy: api.Strategy{
			Conditional:     true,
			GenericMetadata: true,
			Default: api.Typed(func(c *admissionv1.ValidatingWebhookConfiguration) {
				for i := range c.Webhooks {
					defaultWebhook(webhookOfValidating(&c.Webhooks[i]))
				}
			}),
			Validate: api.Check(func(c *admissionv1.ValidatingWebhookConfiguration) field.ErrorList {
				hooks := make([]webhook, len(c.Webhooks))
				for i := range c.Webhooks {
					hooks[i] = webhookOfValidating(&c.Webhooks[i])
				}
				return validateWebhooks(hooks)
			}),
			ValidateCreate: api.Check(func(c *admissionv1.ValidatingWebhookConfiguration) field.ErrorList {
				return validateWebhookExpressions(validatingConditions(c), nil)
			}),
			ValidateUpdate: api.CheckUpdate(func(c, old *admissionv1.ValidatingWebhookConfiguration) field.ErrorList {
				return validateWebhookExpressions(validatingConditions(c), validatingConditions(old))
			}),
			Generation: true,
		},
		Table: api.Table{
			Columns: webhookColumns,
			Cells: api.Row(func(c *admissionv1.ValidatingWebhookConfiguration) []any {
				return []any{c.Name, int64(len(c.Webhooks)), table.AgeOf(c.CreationTimestamp)}
			}),
		},
	}
}

var webhookColumns = []metav1.TableColumnDefinition{
	table.Name, table.Column("Webhooks", "integer",
		"Webhooks indicates the number of webhooks registered in this configuration"), table.Age,
}

// webhook points to the fields that both types of webhook share.
type webhook struct {
	name                              string
	client                            *admissionv1.WebhookClientConfig
	rules                             []admissionv1.RuleWithOperations
	failure                           **admissionv1.FailurePolicyType
	match                             **admissionv1.MatchPolicyType
	namespaceSelector, objectSelector **metav1.LabelSelector
	sideEffects                       *admissionv1.SideEffectClass
	timeout                           **int32
	versions                          []string
	conditions                        []admissionv1.MatchCondition
}

func webhookOf(w *admissionv1.MutatingWebhook) webhook {
	return webhook{w.Name, &w.ClientConfig, w.Rules, &w.FailurePolicy, &w.MatchPolicy, &w.NamespaceSelector,
		&w.ObjectSelector,
		w.SideEffects, &w.TimeoutSeconds, w.AdmissionReviewVersions, w.MatchConditions}
}

func webhookOfValidating(w *admissionv1.ValidatingWebhook) webhook {
	return webhook{w.Name, &w.ClientConfig, w.Rules, &w.FailurePolicy, &w.MatchPolicy, &w.NamespaceSelector,
		&w.ObjectSelector,
		w.SideEffects, &w.TimeoutSeconds, w.AdmissionReviewVersions, w.MatchConditions}
}

func defaultWebhook(w webhook) {
	defaults.SetPtr(w.failure, admissionv1.Fail)
	defaults.SetPtr(w.match, admissionv1.Equivalent)
	defaults.SetPtr(w.namespaceSelector, metav1.LabelSelector{})
	defaults.SetPtr(w.objectSelector, metav1.LabelSelector{})
	defaults.SetPtr(w.timeout, 10)
	for i := range w.rules {
		defaults.SetPtr(&w.rules[i].Scope, admissionv1.AllScopes)
	}
	if w.client.Service != nil {
		defaults.SetPtr(&w.client.Service.Port, 443)
	}
}

func validateWebhooks(hooks []webhook) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i, w := range hooks {
		if field.Enough(errs) {
			break
		}
		idxPath := field.NewPath("webhooks").Index(i)
		errs = append(errs, utilvalidation.IsFullyQualifiedName(idxPath.Child("name").Plain(), w.name)...)
		if w.name != "" && names[w.name] {
			errs = append(errs, field.Duplicate(idxPath.Child("name"), w.name))
		}
		names[w.name] = true
		errs = append(errs, validateWebhook(w, idxPath)...)
	}
	return errs
}

func validateWebhook(w webhook, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range w.rules {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateAdmissionRule(&w.rules[i], path.Child("rules").Index(i))...)
	}
	if p := *w.failure; p != nil {
		errs = append(errs, validate.OneOf(path.Child("failurePolicy"), *p, admissionv1.Fail, admissionv1.Ignore)...)
	}
	if p := *w.match; p != nil {
		errs = append(errs, validate.OneOf(path.Child("matchPolicy"), *p, admissionv1.Equivalent, admissionv1.Exact)...)
	}
	if sideEffectsPath := path.Child("sideEffects"); w.sideEffects == nil {
		errs = append(errs, field.Required(sideEffectsPath, "must specify one of None, NoneOnDryRun"))
	} else {
		errs = append(errs, validate.OneOf(sideEffectsPath, *w.sideEffects, admissionv1.SideEffectClassNone,
			admissionv1.SideEffectClassNoneOnDryRun)...)
	}
	if t := *w.timeout; t != nil && (*t < 1 || *t > 30) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *t,
			"the timeout value must be between 1 and 30 seconds"))
	}
	errs = append(errs, validate.Selector(*w.namespaceSelector, path.Child("namespaceSelector"))...)
	errs = append(errs, validate.Selector(*w.objectSelector, path.Child("objectSelector"))...)
	errs = append(errs, validateReviewVersions(w.versions, path.Child("admissionReviewVersions"))...)
	errs = append(errs, validateMatchConditions(w.conditions, path.Child("matchConditions"))...)
	return append(errs, validateClientConfig(w.client, path.Child("clientConfig"))...)
}

func validateReviewVersions(versions []string, path *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(path, "must specify one of v1, v1beta1")}
	}
	var errs field.ErrorList
	var before validate.Seen
	for i, v := range versions {
		if field.Enough(errs) {
			break
		}
		if validate.Repeated(&before, versions[:i], v) {
			errs = append(errs, field.Invalid(path.Index(i), v, "duplicate version"))
			continue
		}
		errs = append(errs, validate.Complaints(path.Index(i), v, utilvalidation.IsDNS1035Label(v))...)
	}
	if !slices.Contains(versions, "v1") && !slices.Contains(versions, "v1beta1") {
		errs = append(errs, field.Invalid(path, versions, "must include at least one of v1, v1beta1"))
	}
	return errs
}

// maxConditions limits the match conditions of a webhook or policy, as in Kubernetes.
const maxConditions = 64

// validateMatchConditions makes all checks of match conditions but leaves their expressions to expressions.go.
func validateMatchConditions(conditions []admissionv1.MatchCondition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(conditions) > maxConditions {
		errs = append(errs, field.TooMany(path, len(conditions), maxConditions))
	}
	var before validate.Seen
	for i, c := range conditions {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Index(i)
		errs = append(errs, validate.Required(idxPath.Child("expression"), strings.TrimSpace(c.Expression))...)
		errs = append(errs, validate.RequiredQualifiedName(c.Name, idxPath.Child("name"))...)
		if c.Name != "" && validate.RepeatedBy(&before, conditions[:i], c.Name,
			func(o *admissionv1.MatchCondition) string {
				return o.Name
			}) {
			errs = append(errs, field.Duplicate(idxPath.Child("name"), c.Name))
		}
	}
	return errs
}

func validateClientConfig(c *admissionv1.WebhookClientConfig, path *field.Path) field.ErrorList {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		return field.ErrorList{field.Required(path, "exactly one of url or service is required")}
	case c.URL != nil:
		return validate.WebhookURL(*c.URL, path.Child("url"))
	}
	servicePath := path.Child("service")
	var errs field.ErrorList
	if c.Service.Name == "" {
		errs = append(errs, field.Required(servicePath.Child("name"), "service name is required"))
	}
	if c.Service.Namespace == "" {
		errs = append(errs, field.Required(servicePath.Child("namespace"), "service namespace is required"))
	}
	if p := c.Service.Port; p != nil {
		for _, complaint := range utilvalidation.IsValidPortNum(int(*p)) {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, field.Invalid(servicePath.Child("port"), *p, "port is not valid: "+complaint))
		}
	}
	if p := c.Service.Path; p != nil {
		errs = append(errs, validateWebhookPath(*p, servicePath.Child("path"))...)
	}
	return errs
}

func validateWebhookPath(text string, path *field.Path) field.ErrorList {
	u, err := url.Parse("https://host" + text)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(path, text, "url path: "+err.Error())}
	case text == "/" || text == "":
		return nil
	case text == "//":
		return field.ErrorList{field.Invalid(path, text, "segment[0] may not be empty")}
	case !strings.HasPrefix(text, "/"):
		return field.ErrorList{field.Invalid(path, text, "must start with a '/'")}
	}
	var errs field.ErrorList
	steps := strings.Split(strings.TrimSuffix(u.Path[1:], "/"), "/")
	for i, step := range steps {
		if field.Enough(errs) {
			break
		}
		if step == "" {
			errs = append(errs, field.Invalid(path, text, fmt.Sprintf("segment[%d] may not be empty", i)))
			continue
		}
		for _, complaint := range naming.IsDNS1123Subdomain(step) {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, field.Invalid(path, text, fmt.Sprintf("segment[%d]: %s", i, complaint)))
		}
	}
	return errs
}

func validateAdmissionRule(r *admissionv1.RuleWithOperations, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, part := range []struct {
		name, noun string
		list       []string
	}{{"apiGroups", "API groups", r.APIGroups}, {"apiVersions", "API versions", r.APIVersions}} {
		fldPath := path.Child(part.name)
		if len(part.list) == 0 {
			errs = append(errs, field.Required(fldPath, ""))
		}
		if len(part.list) > 1 && slices.Contains(part.list, "*") {
			errs = append(errs,
				field.Invalid(fldPath, part.list, "if '*' is present, must not specify other "+part.noun))
		}
	}
	for i, version := range r.APIVersions {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.Required(path.Child("apiVersions").Index(i), version)...)
	}
	errs = append(errs, validateRuleResources(r.Resources, path.Child("resources"))...)
	fldPath := path.Child("operations")
	if len(r.Operations) == 0 {
		errs = append(errs, field.Required(fldPath, ""))
	}
	if len(r.Operations) > 1 && slices.Contains(r.Operations, admissionv1.OperationAll) {
		errs = append(errs,
			field.Invalid(fldPath, r.Operations, "if '*' is present, must not specify other operations"))
	}
	for i, o := range r.Operations {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.OneOf(fldPath.Index(i), o, admissionv1.OperationAll, admissionv1.Connect,
			admissionv1.Create, admissionv1.Delete, admissionv1.Update)...)
	}
	if s := r.Scope; s != nil {
		errs = append(errs, validate.OneOf(path.Child("scope"), *s, admissionv1.AllScopes, admissionv1.ClusterScope,
			admissionv1.NamespacedScope)...)
	}
	return errs
}

// validateRuleResources rejects resources that a wildcard in the same list already covers.
func validateRuleResources(resources []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(resources) == 0 {
		errs = append(errs, field.Required(path, ""))
	}
	ofResource, ofSubresource := map[string]bool{}, map[string]bool{} // "x/*" and "*/x"
	whole := false
	for i, name := range resources {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Index(i)
		if name == "" {
			errs = append(errs, field.Required(idxPath, ""))
			continue
		}
		resource, sub, found := strings.Cut(name, "/")
		if !found {
			whole = name != "*"
			continue
		}
		if ofResource[resource] {
			errs = append(errs,
				field.Invalid(idxPath, name, fmt.Sprintf("if '%s/*' is present, must not specify %s", resource, name)))
		}
		if ofSubresource[sub] {
			errs = append(errs,
				field.Invalid(idxPath, name, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, name)))
		}
		ofResource[resource] = ofResource[resource] || sub == "*"
		ofSubresource[sub] = ofSubresource[sub] || resource == "*"
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		errs = append(errs, field.Invalid(path, resources, "if '*/*' is present, must not specify other resources"))
	}
	if whole && slices.Contains(resources, "*") {
		errs = append(errs,
			field.Invalid(path, resources, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}
