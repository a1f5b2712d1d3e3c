//go:build e2e

package conformance

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// CustomResourceDefinition Watch watch on custom resource definition objects
func TestDefinition_Watch(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := definition("Noxu", version("v1", plainSchema))
	events, err := c.crds().Watch(c.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + crd.Name})
	require.NoError(t, err)
	defer events.Stop()
	crd = c.define(crd)
	awaitEvent(t, events, watch.Added)
	objects := c.objects(crd, "v1")
	changes, err := objects.Watch(c.ctx, metav1.ListOptions{})
	require.NoError(t, err)
	defer changes.Stop()
	for _, name := range []string{"a", "b"} {
		_, err := objects.Create(c.ctx, object(crd, "v1", name, nil), metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, name, awaitEvent(t, changes, watch.Added))
	}
	for _, name := range []string{"a", "b"} {
		_, err := objects.Patch(c.ctx, name, types.MergePatchType, []byte(`{"x":1}`), metav1.PatchOptions{})
		require.NoError(t, err)
		require.Equal(t, name, awaitEvent(t, changes, watch.Modified))
	}
	for _, name := range []string{"a", "b"} {
		require.NoError(t, objects.Delete(c.ctx, name, metav1.DeleteOptions{}))
		require.Equal(t, name, awaitEvent(t, changes, watch.Deleted))
	}
	_, err = c.crds().Patch(c.ctx, crd.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	awaitEvent(t, events, watch.Modified)
	require.NoError(t, c.crds().Delete(c.ctx, crd.Name, metav1.DeleteOptions{}))
	require.Equal(t, crd.Name, awaitEvent(t, events, watch.Deleted))
}

// awaitEvent reads a watch up to an event of a type, and returns the name of its object.
func awaitEvent(t *testing.T, events watch.Interface, kind watch.EventType) string {
	t.Helper()
	for event := range events.ResultChan() {
		if event.Type == kind {
			obj, err := runtime.DefaultUnstructuredConverter.ToUnstructured(event.Object)
			require.NoError(t, err)
			return (&unstructured.Unstructured{Object: obj}).GetName()
		}
	}
	require.Fail(t, "the watch has ended", "before an event %s", kind)
	return ""
}

// CustomResourceDefinition resources Simple creating/deleting custom resource definition objects works
func TestDefinition_Create(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Noxu", version("v1", plainSchema)))
	require.NoError(t, c.crds().Delete(c.ctx, crd.Name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool {
		_, err := c.crds().Get(c.ctx, crd.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, patience, tick)
}

// CustomResourceDefinition resources Simple getting/updating/patching status sub-resource works
func TestDefinition_Status(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Noxu", version("v1", plainSchema)))
	raw := c.dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	status, err := raw.Get(c.ctx, crd.Name, metav1.GetOptions{}, "status")
	require.NoError(t, err)
	var read apiextensionsv1.CustomResourceDefinition
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(status.Object, &read))
	require.Equal(t, crd.Spec, read.Spec)

	read.Status.Conditions = append(read.Status.Conditions,
		apiextensionsv1.CustomResourceDefinitionCondition{Message: "updated"})
	updated, err := c.crds().UpdateStatus(c.ctx, &read, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Contains(t, messages(updated), "updated")
	found, err := c.crds().Get(c.ctx, crd.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, messages(found), "updated")

	patched, err := c.crds().Patch(c.ctx, crd.Name, types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/status/conditions","value":[{"message":"patched"}]}]`), metav1.PatchOptions{},
		"status")
	require.NoError(t, err)
	require.Contains(t, messages(patched), "patched")
}

// messages returns the messages of a definition's conditions.
func messages(crd *apiextensionsv1.CustomResourceDefinition) (all []string) {
	for _, condition := range crd.Status.Conditions {
		all = append(all, condition.Message)
	}
	return all
}

// CustomResourceDefinition resources Simple listing custom resource definition objects works
func TestDefinition_List(t *testing.T) {
	t.Parallel()
	c := connect(t)
	selected := metav1.ListOptions{LabelSelector: "conformance=" + c.namespace}
	specs := map[string]apiextensionsv1.CustomResourceDefinitionSpec{}
	for range 10 {
		crd := definition("Noxu", version("v1", plainSchema))
		crd.Labels = map[string]string{"conformance": c.namespace}
		specs[crd.Name] = c.define(crd).Spec
	}
	other := c.define(definition("Noxu", version("v1", plainSchema)))
	list, err := c.crds().List(c.ctx, selected)
	require.NoError(t, err)
	require.Len(t, list.Items, 10)
	for _, crd := range list.Items {
		require.Equal(t, specs[crd.Name], crd.Spec)
	}
	require.NoError(t, c.crds().DeleteCollection(c.ctx, metav1.DeleteOptions{}, selected))
	require.Eventually(t, func() bool {
		list, err := c.crds().List(c.ctx, selected)
		require.NoError(t, err)
		return len(list.Items) == 0
	}, patience, tick)
	_, err = c.crds().Get(c.ctx, other.Name, metav1.GetOptions{})
	require.NoError(t, err)
}

// CustomResourceDefinition resources custom resource defaulting for requests and from storage works
func TestDefinition_Defaulting(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(definition("Noxu", version("v1",
		`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}}}`)))
	objects := c.objects(crd, "v1")
	_, err := objects.Create(c.ctx, object(crd, "v1", "first", nil), metav1.CreateOptions{})
	require.NoError(t, err)
	change := func(patch string) {
		t.Helper()
		_, err := c.crds().Patch(c.ctx, crd.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	has := func(name string, fields map[string]any) {
		t.Helper()
		require.Eventually(t, func() bool {
			obj, err := objects.Get(c.ctx, name, metav1.GetOptions{})
			require.NoError(t, err)
			return fmt.Sprint(obj.Object["a"], obj.Object["b"]) == fmt.Sprint(fields["a"], fields["b"])
		}, patience, tick)
	}
	const path = `"path":"/spec/versions/0/schema/openAPIV3Schema/properties`
	change(`[{"op":"add",` + path + `/a/default","value":"A"}]`)
	has("first", map[string]any{"a": "A"})
	second, err := objects.Create(c.ctx, object(crd, "v1", "second", nil), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "A", second.Object["a"])
	require.NotContains(t, second.Object, "b")

	change(`[{"op":"remove",` + path + `/a/default"},{"op":"add",` + path + `/b/default","value":"B"}]`)
	has("second", map[string]any{"a": "A", "b": "B"}) // a was stored, b is set when it is read
	has("first", map[string]any{"b": "B"})            // a was not stored
}

// CustomResourceDefinition resources should include custom resource definition resources in discovery documents
func TestDefinition_Discovery(t *testing.T) {
	t.Parallel()
	c := connect(t)
	var groups metav1.APIGroupList
	require.NoError(t, json.Unmarshal(c.get("/apis", "application/json"), &groups))
	var group metav1.APIGroup
	require.NoError(t, json.Unmarshal(c.get("/apis/apiextensions.k8s.io", "application/json"), &group))
	require.Equal(t, "apiextensions.k8s.io", group.Name)
	found := false
	for _, g := range groups.Groups {
		if g.Name == group.Name {
			require.Equal(t, group.Versions, g.Versions)
			found = true
		}
	}
	require.True(t, found)
	require.Contains(t, group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: "apiextensions.k8s.io/v1",
		Version: "v1"})
	var resources metav1.APIResourceList
	require.NoError(t, json.Unmarshal(c.get("/apis/apiextensions.k8s.io/v1", "application/json"), &resources))
	require.Equal(t, "apiextensions.k8s.io/v1", resources.GroupVersion)
	var names []string
	for _, r := range resources.APIResources {
		names = append(names, r.Name)
	}
	require.Contains(t, names, "customresourcedefinitions")
}
