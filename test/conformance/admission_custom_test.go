//go:build e2e

package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// onObjects returns a rule for the objects of a definition.
func onObjects(crd *apiextensionsv1.CustomResourceDefinition, version string,
	operations ...registrationv1.OperationType) []registrationv1.RuleWithOperations {
	return []registrationv1.RuleWithOperations{on(crd.Spec.Group, version, crd.Spec.Names.Plural, operations...)}
}

// mutated creates an object with data that triggers mutations, and returns the mutated data.
func (c *cluster) mutated(objects dynamic.ResourceInterface, crd *apiextensionsv1.CustomResourceDefinition,
	version, name string) map[string]any {
	c.t.Helper()
	made, err := objects.Create(c.ctx, object(crd, version, name,
		map[string]any{"data": map[string]any{"mutation-start": "yes"}}), metav1.CreateOptions{})
	require.NoError(c.t, err)
	return made.Object["data"].(map[string]any)
}

var stages = map[string]answer{"stage-1": addData("mutation-start", "mutation-stage-1"),
	"stage-2": addData("mutation-stage-1", "mutation-stage-2")}

// AdmissionWebhook should be able to deny custom resource creation, update and deletion
func TestAdmission_DenyCustomResources(t *testing.T) {
	t.Parallel()
	c := connect(t)
	h := c.serveHooks(map[string]answer{"deny-unwanted": func(r *request) *response {
		raw := r.Object.Raw
		if r.Operation == "DELETE" {
			raw = r.OldObject.Raw
		}
		value, _, _ := unstructured.NestedString(objectOf(raw).Object, "data", "webhook-e2e-test")
		switch value {
		case "webhook-disallow":
			return deny("the custom resource contains unwanted data")(r)
		case "webhook-nondeletable":
			if r.Operation == "DELETE" {
				return deny("the custom resource cannot be deleted because it contains unwanted key and value")(r)
			}
		}
		return allow(r)
	}})
	crd := c.define(definition("Deniable", version("v1", plainSchema)))
	h.validating(hook{name: "deny-unwanted", rules: onObjects(crd, "v1", registrationv1.Create, registrationv1.Update,
		registrationv1.Delete)})
	objects := c.objects(crd, "v1")
	with := func(value string) map[string]any {
		return map[string]any{"data": map[string]any{"webhook-e2e-test": value}}
	}
	_, err := objects.Create(c.ctx, object(crd, "v1", "disallowed", with("webhook-disallow")), metav1.CreateOptions{})
	require.ErrorContains(t, err, "the custom resource contains unwanted data")
	_, err = objects.Create(c.ctx, object(crd, "v1", "kept", with("webhook-nondeletable")), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = objects.Patch(c.ctx, "kept", types.MergePatchType,
		[]byte(`{"data":{"webhook-e2e-test":"webhook-disallow"}}`), metav1.PatchOptions{})
	require.ErrorContains(t, err, "the custom resource contains unwanted data")
	err = objects.Delete(c.ctx, "kept", metav1.DeleteOptions{})
	require.ErrorContains(t, err, "the custom resource cannot be deleted because it contains unwanted key and value")

	_, err = objects.Patch(c.ctx, "kept", types.MergePatchType, []byte(`{"data":{"webhook-e2e-test":"webhook-allow"}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, objects.Delete(c.ctx, "kept", metav1.DeleteOptions{}))
}

// AdmissionWebhook should mutate custom resource
func TestAdmission_MutateCustomResources(t *testing.T) {
	t.Parallel()
	c := connect(t)
	h := c.serveHooks(stages)
	crd := c.define(definition("Mutable", version("v1", plainSchema)))
	rules := onObjects(crd, "v1", registrationv1.Create, registrationv1.Update)
	h.mutating(hook{name: "stage-1", rules: rules}, hook{name: "stage-2", rules: rules})
	require.Equal(t, map[string]any{"mutation-start": "yes", "mutation-stage-1": "yes", "mutation-stage-2": "yes"},
		c.mutated(c.objects(crd, "v1"), crd, "v1", "a"))
}

// AdmissionWebhook should mutate custom resource with different stored version
func TestAdmission_MutateCustomResourcesOfAnotherStoredVersion(t *testing.T) {
	t.Parallel()
	c := connect(t)
	h := c.serveHooks(stages)
	crd := c.define(definition("Restored", version("v1", plainSchema), version("v2", plainSchema)))
	rules := onObjects(crd, "*", registrationv1.Create, registrationv1.Update)
	h.mutating(hook{name: "stage-1", rules: rules}, hook{name: "stage-2", rules: rules})
	v1 := c.objects(crd, "v1")
	c.mutated(v1, crd, "v1", "a")

	c.storeVersion(crd, "v2")
	after, err := v1.Patch(c.ctx, "a", types.MergePatchType, []byte(`{"data":{"mutation-stage-2":null}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]any{"mutation-start": "yes", "mutation-stage-1": "yes", "mutation-stage-2": "yes"},
		after.Object["data"])
}

// AdmissionWebhook should mutate custom resource with pruning
func TestAdmission_MutationsArePruned(t *testing.T) {
	t.Parallel()
	c := connect(t)
	h := c.serveHooks(stages)
	crd := c.define(definition("Pruned", version("v1", `{"type":"object","properties":{"data":{"type":"object",
		"properties":{"mutation-start":{"type":"string"},"mutation-stage-1":{"type":"string"}}}}}`)))
	rules := onObjects(crd, "v1", registrationv1.Create, registrationv1.Update)
	h.mutating(hook{name: "stage-1", rules: rules}, hook{name: "stage-2", rules: rules})
	require.Equal(t, map[string]any{"mutation-start": "yes", "mutation-stage-1": "yes"},
		c.mutated(c.objects(crd, "v1"), crd, "v1", "a"), "mutation-stage-2 is not in the schema")
}
