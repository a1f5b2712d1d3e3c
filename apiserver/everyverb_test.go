package apiserver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
)

// errNoSuchMethod means that a client has no method for a verb.
var errNoSuchMethod = errors.New("the client has no such method")

// TestClients_EveryKindAndVerb makes client-go's clients call each verb of each kind and subresource, in each format.
// The list comes from the server's discovery, so that it is complete.
func TestClients_EveryKindAndVerb(t *testing.T) {
	t.Parallel()
	for name, clients := range map[string]func(t *testing.T, s *server) kindClients{
		"typed JSON":     func(t *testing.T, s *server) kindClients { return typedClients(t, s, "application/json") },
		"typed protobuf": func(t *testing.T, s *server) kindClients { return typedClients(t, s, protobuf) },
		"typed CBOR":     func(t *testing.T, s *server) kindClients { return typedClients(t, s, cborType) },
		"dynamic JSON":   func(t *testing.T, s *server) kindClients { return dynamicClients(t, s, "application/json") },
		"dynamic CBOR":   func(t *testing.T, s *server) kindClients { return dynamicClients(t, s, cborType) },
		"metadata JSON": func(t *testing.T, s *server) kindClients {
			return metadataClients(t, s, "application/json", dynamicClients(t, s, "application/json"))
		},
		"metadata protobuf": func(t *testing.T, s *server) kindClients {
			return metadataClients(t, s, protobuf, dynamicClients(t, s, "application/json"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			newClient := clients(t, s)
			if !strings.HasPrefix(name, "typed") && !strings.HasSuffix(name, "CBOR") { // these clients have no custom kinds
				s.defineGadgets()
			}
			t.Run("kinds", func(t *testing.T) { exerciseKinds(t, s, newClient, strings.HasSuffix(name, "CBOR")) })
			s.hasBoundedMetrics()
		})
	}
}

func exerciseKinds(t *testing.T, s *server, of kindClients, binary bool) {
	served := servedResources(t, s)
	for _, r := range served {
		if strings.Contains(r.Name, "/") || r.Kind == "Binding" {
			continue // client-go has no client for bindings: see TestBindings_PutPodsOnNodes
		}
		t.Run(r.Group+"/"+r.Version+"/"+r.Name, func(t *testing.T) {
			t.Parallel()
			k := &kindTest{t: t, s: s.within(t), resource: r, namespace: "", binary: binary}
			if r.Namespaced {
				k.namespace = "default"
			}
			for _, sub := range served {
				if strings.HasPrefix(sub.Name, r.Name+"/") && sub.under == r.under {
					k.subresources = append(k.subresources, sub)
				}
			}
			k.client = of(t, r.under.WithResource(r.Name), k.namespace)
			k.exercise()
		})
	}
}

// servedResource is an entry of discovery, with its group and version.
type servedResource struct {
	metav1.APIResource
	under schema.GroupVersion
}

func servedResources(t *testing.T, s *server) []servedResource {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfigAndClient(s.config, s.http)
	require.NoError(t, err)
	_, lists, err := client.ServerGroupsAndResources()
	require.NoError(t, err)
	var served []servedResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		require.NoError(t, err)
		for _, r := range list.APIResources {
			served = append(served, servedResource{r, gv})
		}
	}
	require.NotEmpty(t, served)
	return served
}

// kindTest calls all verbs of one kind.
type kindTest struct {
	t            *testing.T
	s            *server
	resource     servedResource
	subresources []servedResource
	namespace    string
	client       kindClient
	binary       bool // whether apply configurations are sent as CBOR
	name         string
	doc          m
}

// custom reports whether the kind is defined by defineGadgets.
func (k *kindTest) custom() bool { return k.resource.Name == "gadgets" }

// defineGadgets defines a kind with every subresource that a custom one can have.
func (s *server) defineGadgets() {
	s.t.Helper()
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	integer := m{"type": "integer"}
	s.create(definitions, m{"metadata": m{"name": "gadgets.example.org"}, "spec": m{"group": "example.org",
		"scope": "Namespaced", "names": m{"plural": "gadgets", "kind": "Gadget"}, "versions": []m{{"name": "v1",
			"served": true, "storage": true,
			"subresources": m{"status": m{}, "scale": m{"specReplicasPath": ".spec.replicas",
				"statusReplicasPath": ".status.replicas"}},
			"schema": m{"openAPIV3Schema": m{"type": "object", "properties": m{
				"spec":   m{"type": "object", "properties": m{"replicas": integer}},
				"status": m{"type": "object", "properties": m{"replicas": integer}}}}}}}}})
	require.Eventually(s.t, func() bool { return s.get("/apis/example.org/v1/gadgets").code == http.StatusOK }, patience,
		tick)
}

func (k *kindTest) can(verb string) bool { return slices.Contains(k.resource.Verbs, verb) }

func (k *kindTest) exercise() {
	for _, verb := range k.resource.Verbs {
		require.Contains(k.t, []string{"create", "get", "list", "watch", "update", "patch", "delete",
			"deletecollection"}, verb)
	}
	if !k.can("get") {
		k.exerciseAction()
		return
	}
	if !k.can("create") {
		_, err := k.client.list(k.t.Context(), metav1.ListOptions{})
		require.NoError(k.t, err)
		return
	}
	created := k.create()
	k.read(created)
	k.change(created)
	for _, sub := range k.subresources {
		k.exerciseSubresource(sub)
	}
	k.remove()
	k.removeAll()
}

// exerciseAction tests a kind that is only created, and not stored.
func (k *kindTest) exerciseAction() {
	require.Equal(k.t, metav1.Verbs{"create"}, k.resource.Verbs)
	text, ok := actions[k.resource.Name]
	require.True(k.t, ok, "%s: add what to ask to actions", k.resource.Name)
	if text == "" {
		return
	}
	doc := m{"kind": k.resource.Kind, "apiVersion": k.resource.under.String()}
	require.NoError(k.t, json.Unmarshal([]byte(text), &doc))
	k.s.do(http.MethodPost, k.path(""), doc).ok(http.StatusCreated)
}

// actions are the documents to post to kinds that are not stored; "" if another test covers the kind.
var actions = map[string]string{
	"bindings":                  "",
	"tokenreviews":              `{"spec":{"token":"none"}}`,
	"selfsubjectreviews":        `{}`,
	"subjectaccessreviews":      `{"spec":{"user":"me","resourceAttributes":{"verb":"get","resource":"pods"}}}`,
	"localsubjectaccessreviews": `{"metadata":{"namespace":"default"},"spec":{"user":"me","resourceAttributes":{"namespace":"default","verb":"get","resource":"pods"}}}`,
	"selfsubjectaccessreviews":  `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`,
	"selfsubjectrulesreviews":   `{"spec":{"namespace":"default"}}`,
}

// path returns the path of the collection, or of a path below it.
func (k *kindTest) path(below string) string {
	base := "/apis/" + k.resource.under.String()
	if k.resource.under.Group == "" {
		base = "/api/" + k.resource.under.Version
	}
	if k.namespace != "" {
		base += "/namespaces/" + k.namespace
	}
	return base + "/" + k.resource.Name + below
}

// sample returns the smallest valid document, always the same.
func (k *kindTest) sample() m {
	k.t.Helper()
	if k.doc != nil {
		return document(k.t, k.doc)
	}
	gvk := k.resource.under.WithKind(k.resource.Kind)
	if k.custom() {
		k.name, k.doc = "sample", m{"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind,
			"metadata": m{"name": "sample", "labels": m{"test": "sample"}}, "spec": m{"replicas": int64(1)}}
		return document(k.t, k.doc)
	}
	res := api.NewRegistry(builtin.Kinds()...).Snapshot().Kind(gvk)
	require.NotNil(k.t, res, gvk)
	obj := res.New()
	k.name = fillSample(k.t, obj, res.Kind)
	obj.SetName(k.name)
	obj.SetLabels(map[string]string{"test": k.name})
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	k.doc = document(k.t, obj)
	return document(k.t, k.doc)
}

func (k *kindTest) create() metav1.Object {
	k.t.Helper()
	doc := k.sample()
	_, err := k.client.create(k.t.Context(), doc, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(k.t, err)
	if k.name != "default" {
		_, err = k.client.get(k.t.Context(), k.name)
		require.True(k.t, apierrors.IsNotFound(err), "a dry run has no effect: %v", err)
	}
	obj, err := k.client.create(k.t.Context(), doc, metav1.CreateOptions{})
	require.NoError(k.t, err)
	created := k.metadata(obj)
	require.NotEmpty(k.t, created.GetUID())
	_, err = k.client.create(k.t.Context(), doc, metav1.CreateOptions{})
	require.True(k.t, apierrors.IsAlreadyExists(err), "%v", err)
	switch k.resource.Name {
	case "flowschemas", "validatingadmissionpolicies", "customresourcedefinitions":
		return k.judged()
	}
	return created
}

// judged creates an object and waits until the server has written its status: for a flow schema whether its level
// exists, for a policy the result of type checking, for a definition whether its names are accepted.
func (k *kindTest) judged() (created metav1.Object) {
	k.t.Helper()
	require.Eventually(k.t, func() bool {
		obj, err := k.client.get(k.t.Context(), k.name)
		require.NoError(k.t, err)
		created = k.metadata(obj)
		return slices.ContainsFunc(created.GetManagedFields(), func(e metav1.ManagedFieldsEntry) bool {
			return e.Subresource == "status"
		})
	}, patience, tick)
	return created
}

func (k *kindTest) metadata(obj runtime.Object) metav1.Object {
	k.t.Helper()
	accessor, err := meta.Accessor(obj)
	require.NoError(k.t, err)
	return accessor
}

// selected returns options that select the object of this test: two versions of one kind are tested in parallel.
func (k *kindTest) selected() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: "test=" + k.name}
}

func (k *kindTest) read(created metav1.Object) {
	k.t.Helper()
	obj, err := k.client.get(k.t.Context(), k.name)
	require.NoError(k.t, err)
	require.Equal(k.t, created.GetUID(), k.metadata(obj).GetUID())
	list, err := k.client.list(k.t.Context(), k.selected())
	require.NoError(k.t, err)
	items, err := meta.ExtractList(list)
	require.NoError(k.t, err)
	require.Len(k.t, items, 1)
	require.Equal(k.t, document(k.t, obj)["metadata"], document(k.t, items[0])["metadata"])
}

// change writes the object in every way, and watches it.
func (k *kindTest) change(created metav1.Object) {
	k.t.Helper()
	ctx := k.t.Context()
	events, err := k.client.watch(ctx, metav1.ListOptions{
		ResourceVersion: created.GetResourceVersion(), FieldSelector: "metadata.name=" +
			k.name, AllowWatchBookmarks: true,
	})
	require.NoError(k.t, err)
	defer events.Stop()
	saw := func(label string) {
		k.t.Helper()
		for event := range events.ResultChan() {
			require.NotEqual(k.t, "ERROR", string(event.Type), "%v", event.Object)
			if event.Type == "MODIFIED" && k.metadata(event.Object).GetLabels()["x"] == label {
				return
			}
		}
		require.Fail(k.t, "the watch has ended", "before label %s came", label)
	}
	if k.can("update") {
		obj, err := k.client.get(ctx, k.name)
		require.NoError(k.t, err)
		k.metadata(obj).SetLabels(map[string]string{"test": k.name, "x": "update"})
		obj, err = k.client.update(ctx, obj, "")
		require.NoError(k.t, err)
		require.Equal(k.t, "update", k.metadata(obj).GetLabels()["x"])
		saw("update")
	}
	for _, p := range k.patches() {
		obj, err := k.client.patch(ctx, k.name, p.kind, p.body, p.options())
		require.NoError(k.t, err, p.kind)
		require.Equal(k.t, p.label, k.metadata(obj).GetLabels()["x"], p.kind)
		saw(p.label)
	}
}

// labelPatch is a patch that sets the label x.
type labelPatch struct {
	kind  types.PatchType
	label string
	body  []byte
}

func (p labelPatch) options() metav1.PatchOptions {
	o := metav1.PatchOptions{FieldManager: "clients"}
	if p.kind == types.ApplyYAMLPatchType || p.kind == types.ApplyCBORPatchType {
		force := true
		o.Force = &force
	}
	return o
}

func (k *kindTest) patches() []labelPatch {
	if !k.can("patch") {
		return nil
	}
	merge := func(label string) []byte { return fmt.Appendf(nil, `{"metadata":{"labels":{"x":%q}}}`, label) }
	config := k.sample()
	config["metadata"] = m{"name": k.name, "labels": m{"x": "apply"}}
	if name := config["metadata"].(m); k.namespace != "" {
		name["namespace"] = k.namespace
	}
	for field, value := range config { // optional fields may be left out
		if value == nil || field == "status" {
			delete(config, field)
		}
	}
	apply, kind, err := []byte(nil), types.ApplyYAMLPatchType, error(nil)
	if k.binary {
		kind = types.ApplyCBORPatchType
		apply, err = cbor.Marshal(config)
	} else {
		apply, err = json.Marshal(config)
	}
	require.NoError(k.t, err)
	patches := []labelPatch{
		{types.JSONPatchType, "json", []byte(`[{"op":"replace","path":"/metadata/labels/x","value":"json"}]`)},
		{types.MergePatchType, "merge", merge("merge")},
		{kind, "apply", apply},
	}
	strategic := labelPatch{types.StrategicMergePatchType, "strategic", merge("strategic")}
	if k.custom() { // has no Go type with tags for merging lists
		k.s.patch(k.path("/"+k.name), string(strategic.kind), string(strategic.body)).ok(http.StatusUnsupportedMediaType)
		return patches
	}
	return append(patches, strategic)
}

// exerciseSubresource calls the verbs of a subresource.
func (k *kindTest) exerciseSubresource(sub servedResource) {
	k.t.Helper()
	_, name, _ := strings.Cut(sub.Name, "/")
	if other, ok := acts[sub.Name]; ok {
		if other != "" {
			k.s.do(http.MethodPost, k.path("/"+k.name+"/"+name), other).ok(http.StatusCreated)
		}
		return
	}
	for _, verb := range sub.Verbs {
		switch verb {
		case "get":
			k.s.get(k.path("/" + k.name + "/" + name)).ok(http.StatusOK)
		case "update":
			k.updateSubresource(sub, name)
		case "patch":
			if sub.Kind == k.resource.Kind {
				obj, err := k.client.patch(k.t.Context(), k.name, types.MergePatchType,
					[]byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{}, name)
				require.NoError(k.t, err, name)
				require.Equal(k.t, k.name, nameOf(obj))
			} else {
				k.s.patch(k.path("/"+k.name+"/"+name), mergePatch, `{"spec":{"replicas":0}}`).ok(http.StatusOK)
			}
		default:
			require.Fail(k.t, "add the subresource to acts", "%s %s", verb, sub.Name)
		}
	}
}

func (k *kindTest) updateSubresource(sub servedResource, name string) {
	k.t.Helper()
	if sub.Kind != k.resource.Kind {
		scale := k.s.get(k.path("/" + k.name + "/" + name)).ok(http.StatusOK).object()
		k.s.put(k.path("/"+k.name+"/"+name), scale.Object).ok(http.StatusOK)
		return
	}
	obj, err := k.client.get(k.t.Context(), k.name)
	require.NoError(k.t, err)
	if k.resource.Name == "namespaces" && name == "finalize" {
		return // remove tests it, with a namespace that is being deleted
	}
	updated, err := k.client.update(k.t.Context(), obj, name)
	if errors.Is(err, errNoSuchMethod) {
		full := k.s.get(k.path("/" + k.name)).ok(http.StatusOK).object()
		k.s.put(k.path("/"+k.name+"/"+name), full.Object).ok(http.StatusOK)
		return
	}
	require.NoError(k.t, err, name)
	require.Equal(k.t, k.metadata(obj).GetUID(), k.metadata(updated).GetUID())
}

// acts are the bodies to send to subresources that are not a part of the object; "" if the subresource needs a node, or
// would delete the object.
var acts = map[string]string{
	"pods/binding":          "",
	"pods/eviction":         "",
	"pods/attach":           "",
	"pods/exec":             "",
	"pods/log":              "",
	"pods/portforward":      "",
	"pods/proxy":            "",
	"nodes/proxy":           "",
	"services/proxy":        "",
	"serviceaccounts/token": `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"audiences":["a"]}}`,
}

// remove deletes the object, and removes its finalizers.
func (k *kindTest) remove() {
	k.t.Helper()
	if !k.can("delete") {
		return
	}
	ctx := k.t.Context()
	require.NoError(k.t, k.client.delete(ctx, k.name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
	obj, err := k.client.get(ctx, k.name)
	require.NoError(k.t, err, "a dry run has no effect")
	uid := k.metadata(obj).GetUID()
	wrong := types.UID("other")
	err = k.client.delete(ctx, k.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
	require.True(k.t, apierrors.IsConflict(err), "%v", err)
	require.NoError(k.t,
		k.client.delete(ctx, k.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}))
	k.release()
	_, err = k.client.get(ctx, k.name)
	require.True(k.t, apierrors.IsNotFound(err), "%v", err)
}

// release removes the finalizers of an object that is being deleted.
func (k *kindTest) release() {
	k.t.Helper()
	left := k.s.get(k.path("/" + k.name))
	if left.code == http.StatusNotFound {
		return
	}
	obj := left.ok(http.StatusOK).object()
	require.NotNil(k.t, obj.GetDeletionTimestamp())
	if k.resource.Name == "namespaces" {
		delete(obj.Object["spec"].(m), "finalizers")
		k.s.put(k.path("/"+k.name+"/finalize"), obj.Object).ok(http.StatusOK)
		return
	}
	if k.resource.Name == "customresourcedefinitions" { // the server removes its finalizer itself
		require.Eventually(k.t, func() bool { return k.s.get(k.path("/"+k.name)).code == http.StatusNotFound }, patience,
			time.Millisecond)
		return
	}
	k.s.patch(k.path("/"+k.name), mergePatch, `{"metadata":{"finalizers":null}}`).ok(http.StatusOK)
}

func (k *kindTest) removeAll() {
	k.t.Helper()
	if !k.can("deletecollection") {
		return
	}
	ctx := k.t.Context()
	k.create()
	deleteAll := func(opts metav1.DeleteOptions) {
		k.t.Helper()
		err := k.client.deleteCollection(ctx, opts, k.selected())
		if errors.Is(err, errNoSuchMethod) { // client-go does not have it for every kind
			k.s.do(http.MethodDelete, k.path("?labelSelector="+k.selected().LabelSelector), opts).ok(http.StatusOK)
			return
		}
		require.NoError(k.t, err)
	}
	deleteAll(metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	_, err := k.client.get(ctx, k.name)
	require.NoError(k.t, err, "a dry run has no effect")
	deleteAll(metav1.DeleteOptions{})
	k.release()
	list, err := k.client.list(ctx, k.selected())
	require.NoError(k.t, err)
	require.Zero(k.t, meta.LenList(list))
}
