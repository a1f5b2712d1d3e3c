package crd_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

const (
	// patience is how long a test waits for a server, and tick how often it looks.
	patience = time.Minute
	tick     = 5 * time.Millisecond
)

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
)

// serve starts a server that serves definitions, and returns an administrator's client.
func serve(t *testing.T, o apiserver.Options) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(servertest.Start(t, o).Config)
	require.NoError(t, err)
	return client
}

// definition is one of the kind Widget, changed as a test wants it.
func definition(changes ...func(*apiextensionsv1.CustomResourceDefinition)) *unstructured.Unstructured {
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget", ShortNames: []string{"w"}},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
							"size":  {Type: "integer", Minimum: new(float64(1))},
							"color": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"red"`)}},
						}},
					},
				}},
			}},
		},
	}
	for _, change := range changes {
		change(crd)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err != nil {
		panic(err)
	}
	delete(fields, "status")
	return &unstructured.Unstructured{Object: fields}
}

func widget(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name}, "spec": spec}}
}

// awaitCondition waits until a definition has a condition, and returns it.
func awaitCondition(t *testing.T, client dynamic.Interface, name, condition, status string) map[string]any {
	t.Helper()
	var found map[string]any
	require.Eventually(t, func() bool {
		crd, err := client.Resource(definitions).Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == condition && c["status"] == status {
				found = c
			}
		}
		return found != nil
	}, patience, tick, "%s: %s", name, condition)
	return found
}

// define creates a definition and waits until it is established.
func define(t *testing.T, client dynamic.Interface, changes ...func(*apiextensionsv1.CustomResourceDefinition)) {
	t.Helper()
	crd, err := client.Resource(definitions).Create(t.Context(), definition(changes...), metav1.CreateOptions{})
	require.NoError(t, err)
	awaitCondition(t, client, crd.GetName(), "Established", "True")
}

func TestDefinition_MakesAKind(t *testing.T) {
	t.Parallel()
	client, ctx := serve(t, apiserver.Options{}), t.Context()
	objects := client.Resource(widgets).Namespace("default")
	_, err := objects.List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	define(t, client)

	made, err := objects.Create(ctx, widget("a", map[string]any{"size": int64(2), "unknown": true}),
		metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]any{"size": int64(2), "color": "red"}, made.Object["spec"])
	require.Equal(t, int64(1), made.GetGeneration())
	require.NotEmpty(t, made.GetUID())

	_, err = objects.Create(ctx, widget("b", map[string]any{"size": int64(0)}), metav1.CreateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	require.ErrorContains(t, err, `Widget.example.com "b" is invalid: spec.size: Invalid value: 0: spec.size in body `+
		`should be greater than or equal to 1`)

	made.Object["spec"].(map[string]any)["size"] = int64(3)
	made, err = objects.Update(ctx, made, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, int64(2), made.GetGeneration())
	made, err = objects.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"color":"blue"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]any{"size": int64(3), "color": "blue"}, made.Object["spec"])
	_, err = objects.Patch(ctx, "a", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{})
	require.True(t, apierrors.IsUnsupportedMediaType(err), "%v", err)

	list, err := objects.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, "WidgetList", list.GetKind())
	require.Len(t, list.Items, 1)
	require.Equal(t, made.Object, list.Items[0].Object)
	require.NoError(t, objects.Delete(ctx, "a", metav1.DeleteOptions{}))
	_, err = objects.Get(ctx, "a", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

// withScale gives a definition a Scale of the size.
func withScale(crd *apiextensionsv1.CustomResourceDefinition) {
	crd.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
		Scale: &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.size",
			StatusReplicasPath: ".status.size"}}
}

// TestScale_IsValidatedByTheSchema: a Scale is another way to write the object, not a way around its schema.
func TestScale_IsValidatedByTheSchema(t *testing.T) {
	t.Parallel()
	client, ctx := serve(t, apiserver.Options{}), t.Context()
	define(t, client, withScale, func(crd *apiextensionsv1.CustomResourceDefinition) {
		properties := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
		spec := properties["spec"]
		spec.XValidations = apiextensionsv1.ValidationRules{{Rule: "self.size <= oldSelf.size + 2", Message: "too fast"}}
		properties["spec"] = spec
	})
	objects := client.Resource(widgets).Namespace("default")
	_, err := objects.Create(ctx, widget("a", map[string]any{"size": int64(1)}), metav1.CreateOptions{})
	require.NoError(t, err)
	for _, c := range []struct {
		replicas int
		refusal  string
	}{
		{2, ""},
		{0, "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"},
		{5, "spec: Invalid value: too fast"},
		{4, ""},
	} {
		_, err = objects.Patch(ctx, "a", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, c.replicas),
			metav1.PatchOptions{}, "scale")
		if c.refusal == "" {
			require.NoError(t, err)
			continue
		}
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(t, err, c.refusal)
	}
}

// TestScale_IsProtobufToo, which the objects are not.
func TestScale_IsProtobufToo(t *testing.T) {
	t.Parallel()
	config, ctx := rest.CopyConfig(servertest.Start(t, apiserver.Options{}).Config), t.Context()
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	define(t, client, withScale)
	_, err = client.Resource(widgets).Namespace("default").Create(ctx, widget("a", map[string]any{"size": int64(1)}),
		metav1.CreateOptions{})
	require.NoError(t, err)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	typed, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	const path = "/apis/example.com/v1/namespaces/default/widgets/a/scale"
	var scale autoscalingv1.Scale
	require.NoError(t, typed.AutoscalingV1().RESTClient().Get().AbsPath(path).Do(ctx).Into(&scale))
	require.EqualValues(t, 1, scale.Spec.Replicas)
	scale.Spec.Replicas = 2
	require.NoError(t, typed.AutoscalingV1().RESTClient().Put().AbsPath(path).Body(&scale).Do(ctx).Into(&scale))
	require.EqualValues(t, 2, scale.Spec.Replicas)
}

func TestDefinition_IsDeletedAfterItsObjects(t *testing.T) {
	t.Parallel()
	client, ctx := serve(t, apiserver.Options{}), t.Context()
	define(t, client)
	objects := client.Resource(widgets).Namespace("default")
	held := widget("held", map[string]any{})
	held.SetFinalizers([]string{"example.com/hold"})
	for _, w := range []*unstructured.Unstructured{held, widget("free", map[string]any{})} {
		_, err := objects.Create(ctx, w, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	watch, err := objects.Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	defer watch.Stop()

	require.NoError(t, client.Resource(definitions).Delete(ctx, "widgets.example.com", metav1.DeleteOptions{}))
	c := awaitCondition(t, client, "widgets.example.com", "Terminating", "True")
	require.Contains(t, []any{"InstanceDeletionPending", "InstanceDeletionInProgress"}, c["reason"])
	require.Eventually(t, func() bool {
		_, err := objects.Get(ctx, "free", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, patience, tick)
	_, err = objects.Create(ctx, widget("late", map[string]any{}), metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "create not allowed while custom resource definition is terminating")

	_, err = objects.Patch(ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := client.Resource(definitions).Get(ctx, "widgets.example.com", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, patience, tick)
	var types []string
	for e := range watch.ResultChan() { // which ends, because the kind does
		types = append(types, string(e.Type))
	}
	require.Equal(t, "ADDED ADDED", strings.Join(types[:2], " "))
	require.Equal(t, 2, strings.Count(strings.Join(types, " "), "DELETED"), "%v", types)
	_, err = objects.List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	define(t, client)
	list, err := objects.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, list.Items, "a new definition has a new store")
}

func TestDefinition_NamesAreTakenOnce(t *testing.T) {
	t.Parallel()
	client, ctx := serve(t, apiserver.Options{}), t.Context()
	define(t, client)
	rival := func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Name, crd.Spec.Names.Plural, crd.Spec.Names.Singular = "rivals.example.com", "rivals", "rival"
	}
	_, err := client.Resource(definitions).Create(ctx, definition(rival), metav1.CreateOptions{})
	require.NoError(t, err)
	c := awaitCondition(t, client, "rivals.example.com", "NamesAccepted", "False")
	require.Equal(t, "ListKindConflict", c["reason"])
	require.Equal(t, `"WidgetList" is already in use`, c["message"])
	c = awaitCondition(t, client, "rivals.example.com", "Established", "False")
	require.Equal(t, "NotAccepted", c["reason"])
	rivals := client.Resource(widgets.GroupVersion().WithResource("rivals")).Namespace("default")
	_, err = rivals.List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	require.NoError(t, client.Resource(definitions).Delete(ctx, "widgets.example.com", metav1.DeleteOptions{}))
	awaitCondition(t, client, "rivals.example.com", "Established", "True")
	_, err = rivals.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
}

func TestDefinition_NeedsAUsableCABundleToBeEstablished(t *testing.T) {
	t.Parallel()
	client, ctx := serve(t, apiserver.Options{}), t.Context()
	url := "https://127.0.0.1:1/convert"
	broken := definition(func(crd *apiextensionsv1.CustomResourceDefinition) {
		crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter,
			Webhook: &apiextensionsv1.WebhookConversion{ConversionReviewVersions: []string{"v1"},
				ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: []byte("no certificate")}}}
	})
	crd, err := client.Resource(definitions).Create(ctx, broken, metav1.CreateOptions{})
	require.NoError(t, err)
	c := awaitCondition(t, client, crd.GetName(), "Established", "False")
	require.Equal(t, "InvalidCABundle", c["reason"])
	require.Equal(t, "The conversion webhook CABundle is invalid", c["message"])
	awaitCondition(t, client, crd.GetName(), "NamesAccepted", "True")
	_, err = client.Resource(widgets).Namespace("default").List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	_, err = client.Resource(definitions).Patch(ctx, crd.GetName(), types.MergePatchType,
		[]byte(`{"spec":{"conversion":{"webhook":{"clientConfig":{"caBundle":null}}}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	awaitCondition(t, client, crd.GetName(), "Established", "True")
	_, err = client.Resource(definitions).Patch(ctx, crd.GetName(), types.MergePatchType,
		[]byte(`{"spec":{"conversion":{"webhook":{"clientConfig":{"caBundle":"bm90aGluZw=="}}}}}`), metav1.PatchOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
}

// Two servers agree: what one of them tells of, the other one serves.
func TestDefinition_IsServedByEveryServer(t *testing.T) {
	t.Parallel()
	backend := servertest.Backend(t)
	var clients []dynamic.Interface
	for range 2 {
		clients = append(clients, serve(t, apiserver.Options{Store: servertest.Store(t, backend, storageOptions)}))
	}
	for i := range 20 {
		name := fmt.Sprintf("kind%ds", i)
		define(t, clients[i%2], func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Name, crd.Spec.Names = name+".example.com", apiextensionsv1.CustomResourceDefinitionNames{Plural: name,
				Kind: fmt.Sprintf("Kind%d", i)}
		})
		obj := widget("a", map[string]any{})
		obj.SetKind(fmt.Sprintf("Kind%d", i))
		_, err := clients[(i+1)%2].Resource(widgets.GroupVersion().WithResource(name)).Namespace("default").
			Create(t.Context(), obj, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

func TestDefinition_OfAChangedSchemaReadsOldObjects(t *testing.T) {
	t.Parallel()
	client, ctx := serve(t, apiserver.Options{}), t.Context()
	define(t, client)
	objects := client.Resource(widgets).Namespace("default")
	_, err := objects.Create(ctx, widget("a", map[string]any{"size": int64(2)}), metav1.CreateOptions{})
	require.NoError(t, err)
	patch, err := json.Marshal([]map[string]any{
		{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/shape",
			"value": map[string]any{"type": "string", "default": "round"}},
		{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size"},
	})
	require.NoError(t, err)
	_, err = client.Resource(definitions).Patch(ctx, "widgets.example.com", types.JSONPatchType, patch,
		metav1.PatchOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		w, err := objects.Get(ctx, "a", metav1.GetOptions{})
		require.NoError(t, err)
		spec := w.Object["spec"].(map[string]any)
		return spec["shape"] == "round" && spec["color"] == "red" && spec["size"] == nil
	}, patience, tick)
	list, err := objects.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, "round", list.Items[0].Object["spec"].(map[string]any)["shape"])
}

// A client that sees a definition become established finds its kind in discovery at once.
func TestDefinition_IsDiscoveredOnceEstablished(t *testing.T) {
	t.Parallel()
	config, ctx := servertest.Start(t, apiserver.Options{}).Config, t.Context()
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	changes, err := client.Resource(definitions).Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	defer changes.Stop()
	for i := range 20 {
		plural := fmt.Sprintf("kind%ds", i)
		crd := definition(func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Name, crd.Spec.Names = plural+".example.com", apiextensionsv1.CustomResourceDefinitionNames{
				Plural: plural, Kind: fmt.Sprintf("Kind%d", i)}
		})
		_, err := client.Resource(definitions).Create(ctx, crd, metav1.CreateOptions{})
		require.NoError(t, err)
		awaitEstablished(t, changes, crd.GetName())
		resources, err := discovery.NewDiscoveryClientForConfigOrDie(config).
			ServerResourcesForGroupVersion("example.com/v1")
		require.NoError(t, err)
		require.Len(t, resources.APIResources, i+1)
	}
}

// awaitEstablished reads events until a definition is established.
func awaitEstablished(t *testing.T, changes watch.Interface, name string) {
	t.Helper()
	for event := range changes.ResultChan() {
		crd := event.Object.(*unstructured.Unstructured)
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		if crd.GetName() == name && slices.ContainsFunc(conditions, func(c any) bool {
			return c.(map[string]any)["type"] == "Established" && c.(map[string]any)["status"] == "True"
		}) {
			return
		}
	}
	t.Fatal("the watch ended")
}
