package sites

import (
	"context"
	"encoding/base64"
	"fmt"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	applyregistration "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var resource = schema.GroupResource{Group: GroupVersion.Group, Resource: "sites"}

// configuration is the name of the webhooks' configurations.
const configuration = "site-operator"

// Install registers the webhooks below a URL with the API server, which verifies them with a CA certificate in PEM. An
// operator that runs in the cluster would specify its Service instead of a URL.
//
// The client must not read from a cache. There is none before the manager runs, and the manager can list Sites that are
// stored in another version only after their conversion webhook is installed.
func Install(ctx context.Context, c client.Client, url string, ca []byte) error {
	config := func(path string) *applyregistration.WebhookClientConfigApplyConfiguration {
		return applyregistration.WebhookClientConfig().WithURL(url + path).WithCABundle(ca...)
	}
	type rule = applyregistration.RuleWithOperationsApplyConfiguration
	onSites := func(operations ...registrationv1.OperationType) *rule {
		return applyregistration.RuleWithOperations().WithOperations(operations...).WithAPIGroups(GroupVersion.Group).
			WithAPIVersions(GroupVersion.Version).WithResources(resource.Resource)
	}
	defaults := applyregistration.MutatingWebhookConfiguration(configuration).WithWebhooks(
		applyregistration.MutatingWebhook().WithName("default.sites.example.com").
			WithRules(onSites(registrationv1.Create, registrationv1.Update)).
			WithClientConfig(config("/mutate-example-com-v1-site")).
			WithSideEffects(registrationv1.SideEffectClassNone).WithAdmissionReviewVersions("v1"))
	if err := c.Apply(ctx, defaults, manager, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the mutating webhook: %w", err)
	}
	validation := applyregistration.ValidatingWebhookConfiguration(configuration).WithWebhooks(
		applyregistration.ValidatingWebhook().WithName("validate.sites.example.com").
			WithRules(onSites(registrationv1.Create, registrationv1.Delete)).
			WithClientConfig(config("/validate-example-com-v1-site")).
			WithSideEffects(registrationv1.SideEffectClassNone).WithAdmissionReviewVersions("v1"))
	if err := c.Apply(ctx, validation, manager, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the validating webhook: %w", err)
	}
	conversion := client.ApplyConfigurationFromUnstructured(conversionBy(url+"/convert", ca))
	if err := c.Apply(ctx, conversion, manager, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the conversion webhook: %w", err)
	}
	return nil
}

// conversionBy returns the part of the CustomResourceDefinition that configures the webhook.
func conversionBy(url string, ca []byte) *unstructured.Unstructured {
	client := map[string]any{"url": url, "caBundle": base64.StdEncoding.EncodeToString(ca)}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": resource.String()},
		"spec": map[string]any{"conversion": map[string]any{
			"strategy": "Webhook",
			"webhook":  map[string]any{"conversionReviewVersions": []any{"v1"}, "clientConfig": client},
		}},
	}}
}
