//go:build e2e

package conformance

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	registrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
)

// The webhooks listen on loopback, so the cluster under test must run on this machine. Each test has webhooks of its
// own, which only see the requests of its namespace, so that the tests do not interfere.

type (
	request  = admissionv1.AdmissionRequest
	response = admissionv1.AdmissionResponse
	// answer is the function of a webhook.
	answer func(*request) *response
	// patch is a JSON patch.
	patch []map[string]any
)

func allow(*request) *response { return &response{Allowed: true} }

// deny rejects every request with a message.
func deny(message string) answer {
	return func(*request) *response { return &response{Result: &metav1.Status{Message: message}} }
}

// mutate applies the patch that change computes from the object.
func mutate(change func(*unstructured.Unstructured) patch) answer {
	return func(r *request) *response {
		operations, err := json.Marshal(change(objectOf(r.Object.Raw)))
		if err != nil {
			return deny(err.Error())(r)
		}
		return &response{Allowed: true, Patch: operations, PatchType: new(admissionv1.PatchTypeJSONPatch)}
	}
}

// objectOf decodes the object in a request; it is empty if there is none.
func objectOf(raw []byte) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	if len(raw) > 0 {
		_ = json.Unmarshal(raw, &u.Object) // the server has encoded it
	}
	return u
}

// addData adds an entry to a configmap that has another one.
func addData(has, add string) answer {
	return mutate(func(u *unstructured.Unstructured) patch {
		if value, _, _ := unstructured.NestedString(u.Object, "data", has); value != "yes" {
			return patch{}
		}
		return patch{{"op": "add", "path": "/data/" + add, "value": "yes"}}
	})
}

// hooks is a server of webhooks, by the name of the webhook.
type hooks struct {
	*httptest.Server
	answers map[string]answer
	*cluster
}

// serveHooks starts a server of webhooks for the test.
func (c *cluster) serveHooks(answers map[string]answer) *hooks {
	c.t.Helper()
	h := &hooks{cluster: c, answers: answers}
	h.Server = httptest.NewTLSServer(h)
	c.t.Cleanup(h.Close)
	return h
}

func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	answer := h.answers[name]
	if name == marker {
		answer = deny("this is the marker")
	}
	review.Response = answer(review.Request)
	review.Response.UID = review.Request.UID
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the server reports a missing answer
}

// at returns the client configuration of a webhook.
func (h *hooks) at(name string) registrationv1.WebhookClientConfig {
	return registrationv1.WebhookClientConfig{URL: new(h.URL + "/" + name),
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})}
}

// nowhere returns the client configuration of a webhook that does not answer.
func (h *hooks) nowhere() registrationv1.WebhookClientConfig {
	config := h.at("nowhere")
	config.URL = new("https://127.0.0.1:1/")
	return config
}

// marker is the name of a webhook that rejects marked configmaps. It is part of each configuration, and shows whether
// the configuration is in force.
const marker = "marker"

// hook is a webhook with the fields that the tests vary; validating and mutating set the other fields.
type hook struct {
	name       string
	rules      []registrationv1.RuleWithOperations
	at         *registrationv1.WebhookClientConfig // the test's server, if it is nil
	failure    registrationv1.FailurePolicyType    // Fail, if it is empty
	timeout    *int32
	namespaces *metav1.LabelSelector // the test's own, if it is nil
	objects    *metav1.LabelSelector
	conditions []registrationv1.MatchCondition
}

// on returns a rule for resources of a group and version.
func on(group, version, resource string, operations ...registrationv1.OperationType,
) registrationv1.RuleWithOperations {
	return registrationv1.RuleWithOperations{Operations: operations,
		Rule: registrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{version},
			Resources: []string{resource}}}
}

func (h *hooks) validatingHook(of hook) registrationv1.ValidatingWebhook {
	target := of.at
	if target == nil {
		target = new(h.at(of.name))
	}
	failure := of.failure
	if failure == "" {
		failure = registrationv1.Fail
	}
	selector := of.namespaces
	if selector == nil {
		selector = h.ownNamespace()
	}
	return registrationv1.ValidatingWebhook{Name: of.name + ".k8s.io", Rules: of.rules, ClientConfig: *target,
		FailurePolicy: &failure, TimeoutSeconds: of.timeout, NamespaceSelector: selector, ObjectSelector: of.objects,
		MatchConditions: of.conditions, SideEffects: new(registrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1", "v1beta1"}}
}

func (h *hooks) ownNamespace() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: h.namespace}}
}

func (h *hooks) validatingConfiguration(list ...hook) *registrationv1.ValidatingWebhookConfiguration {
	config := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: h.meta()}
	for _, one := range append(list, h.marker(config.Name)) {
		config.Webhooks = append(config.Webhooks, h.validatingHook(one))
	}
	return config
}

func (h *hooks) mutatingConfiguration(list ...hook) *registrationv1.MutatingWebhookConfiguration {
	config := &registrationv1.MutatingWebhookConfiguration{ObjectMeta: h.meta()}
	for _, one := range append(list, h.marker(config.Name)) {
		v := h.validatingHook(one)
		config.Webhooks = append(config.Webhooks, registrationv1.MutatingWebhook{Name: v.Name, Rules: v.Rules,
			ClientConfig: v.ClientConfig, FailurePolicy: v.FailurePolicy, TimeoutSeconds: v.TimeoutSeconds,
			NamespaceSelector: v.NamespaceSelector, ObjectSelector: v.ObjectSelector, SideEffects: v.SideEffects,
			MatchConditions: v.MatchConditions, AdmissionReviewVersions: v.AdmissionReviewVersions})
	}
	return config
}

func (h *hooks) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: "hooks-" + suffix() + "." + h.namespace, Labels: map[string]string{"of": h.namespace}}
}

func (h *hooks) marker(config string) hook {
	return hook{name: marker, rules: []registrationv1.RuleWithOperations{on("", "v1", "configmaps",
		registrationv1.Create)}, objects: &metav1.LabelSelector{MatchLabels: map[string]string{marker: config}}}
}

// validating registers validating webhooks, and waits until they are in force.
func (h *hooks) validating(list ...hook) *registrationv1.ValidatingWebhookConfiguration {
	h.t.Helper()
	config, err := h.validatingConfigurations().Create(h.ctx, h.validatingConfiguration(list...),
		metav1.CreateOptions{})
	require.NoError(h.t, err)
	h.cleanup(func(ctx context.Context) error {
		return h.validatingConfigurations().Delete(ctx, config.Name, metav1.DeleteOptions{})
	})
	h.awaitMarker(config.Name, true)
	return config
}

// mutating registers mutating webhooks, and waits until they are in force.
func (h *hooks) mutating(list ...hook) *registrationv1.MutatingWebhookConfiguration {
	h.t.Helper()
	config, err := h.mutatingConfigurations().Create(h.ctx, h.mutatingConfiguration(list...), metav1.CreateOptions{})
	require.NoError(h.t, err)
	h.cleanup(func(ctx context.Context) error {
		return h.mutatingConfigurations().Delete(ctx, config.Name, metav1.DeleteOptions{})
	})
	h.awaitMarker(config.Name, true)
	return config
}

func (c *cluster) validatingConfigurations() registrationclient.ValidatingWebhookConfigurationInterface {
	return c.core.AdmissionregistrationV1().ValidatingWebhookConfigurations()
}

func (c *cluster) mutatingConfigurations() registrationclient.MutatingWebhookConfigurationInterface {
	return c.core.AdmissionregistrationV1().MutatingWebhookConfigurations()
}

// awaitMarker waits until a configuration is in force, or no longer in force.
func (h *hooks) awaitMarker(config string, inForce bool) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		marked := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: marker,
			Labels: map[string]string{marker: config}}}
		_, err := h.core.CoreV1().ConfigMaps(h.namespace).Create(h.ctx, marked,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			require.ErrorContains(h.t, err, "this is the marker")
		}
		return (err != nil) == inForce
	}, patience, tick)
}

// configMap creates a configmap in a namespace.
func (c *cluster) configMap(namespace, name string, data map[string]string) (*corev1.ConfigMap, error) {
	return c.core.CoreV1().ConfigMaps(namespace).Create(c.ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
}

// jsonPatch replaces fields of an object by a JSON patch of one operation.
func jsonPatch(t *testing.T, operations patch) []byte {
	t.Helper()
	body, err := json.Marshal(operations)
	require.NoError(t, err)
	return body
}

const asJSONPatch = types.JSONPatchType
