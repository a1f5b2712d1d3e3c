package api

import (
	"net/url"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

const admissionGroup = admissionv1.GroupName

func mutatingWebhooks() *Resource {
	return &Resource{
		Group: admissionGroup, Version: "v1", Kind: "MutatingWebhookConfiguration", Plural: "mutatingwebhookconfigurations",
		Categories:  []string{"api-extensions"},
		New:         func() Object { return &admissionv1.MutatingWebhookConfiguration{} },
		NewList:     func() runtime.Object { return &admissionv1.MutatingWebhookConfigurationList{} },
		Conditional: true,

		Default: with(func(c *admissionv1.MutatingWebhookConfiguration) {
			for i := range c.Webhooks {
				setDefaultPtr(&c.Webhooks[i].ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
				defaultWebhook(webhookOf(&c.Webhooks[i]))
			}
		}),
		Validate: checked(func(c *admissionv1.MutatingWebhookConfiguration) field.ErrorList {
			hooks := make([]webhook, len(c.Webhooks))
			var errs field.ErrorList
			for i := range c.Webhooks {
				hooks[i] = webhookOf(&c.Webhooks[i])
				if p := c.Webhooks[i].ReinvocationPolicy; p != nil {
					errs = append(errs, oneOf(field.NewPath("webhooks").Index(i).Child("reinvocationPolicy"), *p,
						admissionv1.IfNeededReinvocationPolicy, admissionv1.NeverReinvocationPolicy)...)
				}
			}
			return append(errs, validateWebhooks(hooks)...)
		}),
		Generation: true,

		Columns: webhookColumns,
		Cells: row(func(c *admissionv1.MutatingWebhookConfiguration) []any {
			return []any{c.Name, int64(len(c.Webhooks)), age(c.CreationTimestamp)}
		}),
	}
}

func validatingWebhooks() *Resource {
	return &Resource{
		Group: admissionGroup, Version: "v1", Kind: "ValidatingWebhookConfiguration", Plural: "validatingwebhookconfigurations",
		Categories:  []string{"api-extensions"},
		New:         func() Object { return &admissionv1.ValidatingWebhookConfiguration{} },
		NewList:     func() runtime.Object { return &admissionv1.ValidatingWebhookConfigurationList{} },
		Conditional: true,

		Default: with(func(c *admissionv1.ValidatingWebhookConfiguration) {
			for i := range c.Webhooks {
				defaultWebhook(webhookOfValidating(&c.Webhooks[i]))
			}
		}),
		Validate: checked(func(c *admissionv1.ValidatingWebhookConfiguration) field.ErrorList {
			hooks := make([]webhook, len(c.Webhooks))
			for i := range c.Webhooks {
				hooks[i] = webhookOfValidating(&c.Webhooks[i])
			}
			return validateWebhooks(hooks)
		}),
		Generation: true,

		Columns: webhookColumns,
		Cells: row(func(c *admissionv1.ValidatingWebhookConfiguration) []any {
			return []any{c.Name, int64(len(c.Webhooks)), age(c.CreationTimestamp)}
		}),
	}
}

var webhookColumns = []metav1.TableColumnDefinition{
	nameColumn, column("Webhooks", "integer", "Webhooks indicates the number of webhooks registered in this configuration"), ageColumn,
}

// webhook points to what the two types of webhook have in common.
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
	return webhook{w.Name, &w.ClientConfig, w.Rules, &w.FailurePolicy, &w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector,
		w.SideEffects, &w.TimeoutSeconds, w.AdmissionReviewVersions, w.MatchConditions}
}

func webhookOfValidating(w *admissionv1.ValidatingWebhook) webhook {
	return webhook{w.Name, &w.ClientConfig, w.Rules, &w.FailurePolicy, &w.MatchPolicy, &w.NamespaceSelector, &w.ObjectSelector,
		w.SideEffects, &w.TimeoutSeconds, w.AdmissionReviewVersions, w.MatchConditions}
}

func defaultWebhook(w webhook) {
	setDefaultPtr(w.failure, admissionv1.Fail)
	setDefaultPtr(w.match, admissionv1.Equivalent)
	setDefaultPtr(w.namespaceSelector, metav1.LabelSelector{})
	setDefaultPtr(w.objectSelector, metav1.LabelSelector{})
	setDefaultPtr(w.timeout, 10)
	for i := range w.rules {
		setDefaultPtr(&w.rules[i].Scope, admissionv1.AllScopes)
	}
	if w.client.Service != nil {
		setDefaultPtr(&w.client.Service.Port, 443)
	}
}

func validateWebhooks(hooks []webhook) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i, w := range hooks {
		at := field.NewPath("webhooks").Index(i)
		errs = append(errs, utilvalidation.IsFullyQualifiedName(at.Child("name"), w.name)...)
		if names[w.name] {
			errs = append(errs, field.Duplicate(at.Child("name"), w.name))
		}
		names[w.name] = true
		errs = append(errs, validateWebhook(w, at)...)
	}
	return errs
}

func validateWebhook(w webhook, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range w.rules {
		errs = append(errs, validateAdmissionRule(&w.rules[i], path.Child("rules").Index(i))...)
	}
	if p := *w.failure; p != nil {
		errs = append(errs, oneOf(path.Child("failurePolicy"), *p, admissionv1.Fail, admissionv1.Ignore)...)
	}
	if p := *w.match; p != nil {
		errs = append(errs, oneOf(path.Child("matchPolicy"), *p, admissionv1.Equivalent, admissionv1.Exact)...)
	}
	effects := ptr.Deref(w.sideEffects, "")
	errs = append(errs, requiredOneOf(path.Child("sideEffects"), effects, admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun)...)
	if t := *w.timeout; t != nil && (*t < 1 || *t > 30) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds"))
	}
	errs = append(errs, selector(*w.namespaceSelector, path.Child("namespaceSelector"))...)
	errs = append(errs, selector(*w.objectSelector, path.Child("objectSelector"))...)
	versions := path.Child("admissionReviewVersions")
	switch {
	case len(w.versions) == 0:
		errs = append(errs, field.Required(versions, "must specify one of v1, v1beta1"))
	case !slices.Contains(w.versions, "v1") && !slices.Contains(w.versions, "v1beta1"):
		errs = append(errs, field.Invalid(versions, w.versions, "must include at least one of v1, v1beta1"))
	}
	for i, c := range w.conditions {
		at := path.Child("matchConditions").Index(i)
		errs = append(errs, requiredName(c.Name, at.Child("name"))...)
		errs = append(errs, required(at.Child("expression"), c.Expression)...)
	}
	return append(errs, validateClientConfig(w.client, path.Child("clientConfig"))...)
}

func validateClientConfig(c *admissionv1.WebhookClientConfig, path *field.Path) field.ErrorList {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		return field.ErrorList{field.Required(path, "exactly one of url or service is required")}
	case c.URL != nil:
		at := path.Child("url")
		u, err := url.Parse(*c.URL)
		switch {
		case err != nil:
			return field.ErrorList{field.Required(at, "url must be a valid URL: "+err.Error())}
		case u.Scheme != "https":
			return field.ErrorList{field.Invalid(at, u.Scheme, "'https' is the only allowed URL scheme; desired format: https://host[/path]")}
		case u.Host == "":
			return field.ErrorList{field.Invalid(at, u.Host, "host must be specified; desired format: https://host[/path]")}
		case u.User != nil || u.RawQuery != "" || u.Fragment != "":
			return field.ErrorList{field.Invalid(at, *c.URL, "user information, query and fragment are not permitted in the URL")}
		}
		return nil
	default:
		at := path.Child("service")
		errs := required(at.Child("name"), c.Service.Name)
		errs = append(errs, required(at.Child("namespace"), c.Service.Namespace)...)
		if p := c.Service.Port; p != nil {
			errs = append(errs, portNumber(at.Child("port"), *p)...)
		}
		return errs
	}
}

func validateAdmissionRule(r *admissionv1.RuleWithOperations, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for name, list := range map[string][]string{"apiGroups": r.APIGroups, "apiVersions": r.APIVersions, "resources": r.Resources} {
		at := path.Child(name)
		switch {
		case len(list) == 0:
			errs = append(errs, field.Required(at, ""))
		case len(list) > 1 && slices.Contains(list, "*") && name != "resources":
			errs = append(errs, field.Invalid(at, list, "if '*' is present, must not specify other values"))
		case name != "apiGroups" && slices.Contains(list, ""):
			errs = append(errs, field.Required(at.Index(slices.Index(list, "")), ""))
		}
	}
	at := path.Child("operations")
	if len(r.Operations) == 0 {
		errs = append(errs, field.Required(at, ""))
	}
	if len(r.Operations) > 1 && slices.Contains(r.Operations, admissionv1.OperationAll) {
		errs = append(errs, field.Invalid(at, r.Operations, "if '*' is present, must not specify other operations"))
	}
	for i, o := range r.Operations {
		errs = append(errs, oneOf(at.Index(i), o, admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create, admissionv1.Delete, admissionv1.Update)...)
	}
	if s := r.Scope; s != nil {
		errs = append(errs, oneOf(path.Child("scope"), *s, admissionv1.AllScopes, admissionv1.ClusterScope, admissionv1.NamespacedScope)...)
	}
	return errs
}
