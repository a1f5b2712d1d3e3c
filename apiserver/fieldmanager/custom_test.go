package fieldmanager

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// specOf returns the schema of an object with a spec.
func specOf(t testing.TB, spec string) *props {
	t.Helper()
	var p props
	require.NoError(t, json.Unmarshal([]byte(`{"type":"object","properties":{"spec":`+spec+
		`,"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`), &p))
	return &p
}

// widgets returns the registrations of a kind. Its versions have the given schemas of the spec.
func widgets(t testing.TB, specs ...string) []*api.Resource {
	t.Helper()
	var schemas []*props
	for _, spec := range specs {
		schemas = append(schemas, specOf(t, spec))
	}
	return served(t, definitionOf(schemas, true, true))
}

// widget returns an object as a client sends it.
func widget(t testing.TB, res *api.Resource, fields string) *customresource.Object {
	t.Helper()
	obj := res.New().(*customresource.Object)
	_, err := obj.DecodeStrict([]byte(`{"apiVersion":"` + res.GroupVersion().String() +
		`","kind":"Widget","metadata":{"name":"w"},` + strings.TrimPrefix(fields, "{")))
	require.NoError(t, err)
	res.Default(obj)
	return obj
}

func writerOf(res *api.Resource, manager string) Writer {
	return Writer{Manager: manager, APIVersion: res.GroupVersion().String(), At: metav1.Now().Rfc3339Copy()}
}

// fieldsOfManager returns the fields of a manager's only entry, or "" if it has none.
func fieldsOfManager(entries []metav1.ManagedFieldsEntry, manager string) string {
	for _, e := range entries {
		if e.Manager == manager {
			return e.FieldsV1.GetRawString()
		}
	}
	return ""
}

// One manager creates an object and a second one updates it.
func TestUpdate_OwnsCustomFieldsByTheSchema(t *testing.T) {
	t.Parallel()
	const named = `"items":{"type":"object","required":["name"],"properties":{"name":{"type":"string"},` +
		`"port":{"type":"integer","default":80},"value":{"type":"string"}}}`
	for name, c := range map[string]struct{ spec, old, now, first, second string }{
		"list without a type": {`{"type":"array","items":{"type":"string"}}`, `["a"]`, `["a","b"]`,
			``, `{"f:spec":{}}`},
		"atomic list": {`{"type":"array","x-kubernetes-list-type":"atomic","items":{"type":"string"}}`, `["a"]`, `[]`,
			``, `{"f:spec":{}}`},
		"set": {`{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}`, `["a","b"]`, `["b","c"]`,
			`{"f:spec":{".":{},"v:\"b\"":{}}}`, `{"f:spec":{"v:\"c\"":{}}}`},
		"set with duplicates": {`{"type":"array","x-kubernetes-list-type":"set","items":{"type":"integer"}}`,
			`[1,1,2]`, `[1,2,2]`, `{"f:spec":{}}`, `{"f:spec":{"v:1":{},"v:2":{}}}`},
		"map with a defaulted key": {`{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":
			["port","name"],` + named + `}`, `[{"name":"a","value":"1"}]`, `[{"name":"a","value":"2"},{"name":"a","port":1}]`,
			`{"f:spec":{".":{},"k:{\"name\":\"a\",\"port\":80}":{".":{},"f:name":{},"f:port":{}}}}`,
			`{"f:spec":{"k:{\"name\":\"a\",\"port\":1}":{".":{},"f:name":{},"f:port":{}},` +
				`"k:{\"name\":\"a\",\"port\":80}":{"f:value":{}}}}`},
		"map whose item is removed": {`{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":
			["name"],` + named + `}`, `[{"name":"a"},{"name":"b"}]`, `[{"name":"b"}]`,
			`{"f:spec":{".":{},"k:{\"name\":\"b\"}":{".":{},"f:name":{},"f:port":{}}}}`, ``},
		"map of atomic items": {`{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],
			"items":{"type":"object","x-kubernetes-map-type":"atomic","required":["name"],"properties":{
			"name":{"type":"string"},"v":{"type":"integer"}}}}`, `[{"name":"a","v":1},{"name":"b"}]`,
			`[{"name":"a","v":2},{"name":"b"}]`, `{"f:spec":{".":{},"k:{\"name\":\"b\"}":{}}}`,
			`{"f:spec":{"k:{\"name\":\"a\"}":{}}}`},
		"object": {`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"object","properties":{
			"c":{"type":"string"},"d":{"type":"string"}}}}}`, `{"a":1,"b":{"c":"x","d":"x"}}`, `{"a":1,"b":{"c":"y"}}`,
			`{"f:spec":{".":{},"f:a":{},"f:b":{}}}`, `{"f:spec":{"f:b":{"f:c":{}}}}`},
		"atomic object": {`{"type":"object","x-kubernetes-map-type":"atomic","properties":{"a":{"type":"integer"}}}`,
			`{"a":1}`, `{"a":2}`, ``, `{"f:spec":{}}`},
		"granular map": {`{"type":"object","x-kubernetes-map-type":"granular","additionalProperties":{"type":"string"}}`,
			`{"a/b":"1"}`, `{"a/b":"1","<c>":"2"}`, `{"f:spec":{".":{},"f:a/b":{}}}`, `{"f:spec":{"f:\u003cc\u003e":{}}}`},
		"unknown fields": {`{"type":"object","x-kubernetes-preserve-unknown-fields":true}`,
			`{"a":{"b":1,"c":[{"d":1}]},"e":"x"}`, `{"a":{"b":1,"c":[{"d":2}]},"e":{"f":1}}`,
			`{"f:spec":{".":{},"f:a":{".":{},"f:b":{}}}}`, `{"f:spec":{"f:a":{"f:c":{}},"f:e":{".":{},"f:f":{}}}}`},
		"no properties": {`{"type":"object"}`, `{"gone":1}`, `{"gone":2}`, `{"f:spec":{}}`, ``},
		"int or string": {`{"type":"object","properties":{"a":{"x-kubernetes-int-or-string":true},
			"b":{"x-kubernetes-int-or-string":true}}}`, `{"a":1,"b":"x"}`, `{"a":"1","b":"x"}`,
			`{"f:spec":{".":{},"f:b":{}}}`, `{"f:spec":{"f:a":{}}}`},
		"a whole number": {`{"type":"object","properties":{"a":{"type":"number"}}}`, `{"a":1}`, `{"a":1.0}`,
			`{"f:spec":{".":{},"f:a":{}}}`, ``},
		"null": {`{"type":"object","properties":{"a":{"type":"string","nullable":true},"b":{"type":"object","nullable":true,
			"properties":{"c":{"type":"integer"}}}}}`, `{"a":null,"b":null}`, `{"a":"x","b":{"c":1}}`,
			`{"f:spec":{".":{},"f:b":{}}}`, `{"f:spec":{"f:a":{},"f:b":{"f:c":{}}}}`},
		"embedded object": {`{"type":"object","x-kubernetes-embedded-resource":true,
			"x-kubernetes-preserve-unknown-fields":true}`,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","finalizers":["a/b"]},"spec":{"x":1}}`,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"q","finalizers":["a/b","c/d"]},"spec":{"x":1}}`,
			`{"f:spec":{".":{},"f:apiVersion":{},"f:kind":{},"f:metadata":{".":{},"f:finalizers":{".":{},"v:\"a/b\"":{}}},` +
				`"f:spec":{".":{},"f:x":{}}}}`,
			`{"f:spec":{"f:metadata":{"f:finalizers":{"v:\"c/d\"":{}},"f:name":{}}}}`},
		"nested lists": {`{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["n"],"items":{
			"type":"object","required":["n"],"properties":{"n":{"type":"string"},"s":{"type":"array",
			"x-kubernetes-list-type":"set","items":{"type":"string"}}}}}`, `[{"n":"a","s":["x"]}]`, `[{"n":"a","s":["x","y"]}]`,
			`{"f:spec":{".":{},"k:{\"n\":\"a\"}":{".":{},"f:n":{},"f:s":{".":{},"v:\"x\"":{}}}}}`,
			`{"f:spec":{"k:{\"n\":\"a\"}":{"f:s":{"v:\"y\"":{}}}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kinds := widgets(t, c.spec)
			old := widget(t, kinds[0], `"spec":`+c.old+`}`)
			old.SetManagedFields(Create(kinds[0], old, writerOf(kinds[0], "first")))
			now := widget(t, kinds[0], `"spec":`+c.now+`}`)
			entries, err := Update(t.Context(), api.NewRegistry(kinds...).Snapshot(), kinds[0], now, old, nil, writerOf(kinds[0], "second"))
			require.NoError(t, err)
			require.Equal(t, c.first, fieldsOfManager(entries, "first"))
			require.Equal(t, c.second, fieldsOfManager(entries, "second"))
		})
	}
}

// kube-apiserver's library cannot process such objects and leaves managedFields unchanged.
func TestUpdate_KeepsEntriesOfUntrackableObjects(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]struct{ schema, bad string }{
		"another type": {`{"type":"object","properties":{"a":{"type":"integer"}}}`, `{"a":"text"}`},
		"items without keys": {`{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["n"],
			"items":{"type":"object","properties":{"n":{"type":"string"}}}}`, `[{}]`},
		"set of objects": {`{"type":"array","x-kubernetes-list-type":"set","items":{"type":"object",
			"x-kubernetes-map-type":"atomic","properties":{"n":{"type":"string"}}}}`, `[{"n":"a"}]`},
		"null in a set": {`{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string","nullable":true}}`,
			`[null]`},
	} {
		kinds := widgets(t, spec.schema)
		bad := widget(t, kinds[0], `"spec":`+spec.bad+`}`)
		require.Empty(t, Create(kinds[0], bad, writerOf(kinds[0], "first")), name)
		old := widget(t, kinds[0], `"status":{"a":1}}`)
		old.SetLabels(map[string]string{"a": "b"})
		old.SetManagedFields(Create(kinds[0], old, writerOf(kinds[0], "first")))
		entries, err := Update(t.Context(), api.NewRegistry(kinds...).Snapshot(), kinds[0], bad, old, nil, writerOf(kinds[0], "second"))
		require.NoError(t, err, name)
		require.Equal(t, old.GetManagedFields(), entries, name)
	}
}

const granularSpec = `{"type":"object","properties":{"replicas":{"type":"integer"},"a0":{"type":"integer"},
	"a1":{"type":"integer"},"labels":{"type":"object","additionalProperties":{"type":"string"}}}}`

func TestUpdate_SeparatesStatusFromTheRest(t *testing.T) {
	t.Parallel()
	kinds := widgets(t, granularSpec)
	snapshot := api.NewRegistry(kinds...).Snapshot()
	obj := widget(t, kinds[0], `"spec":{"replicas":1},"status":{"ready":true}}`)
	entries := Create(kinds[0], obj, writerOf(kinds[0], "main"))
	require.Equal(t, `{"f:spec":{".":{},"f:replicas":{}}}`, fieldsOfManager(entries, "main"))
	obj.SetManagedFields(entries)

	now := widget(t, kinds[0], `"spec":{"replicas":1},"status":{"ready":false}}`)
	w := writerOf(kinds[0], "controller")
	w.Subresource = "status"
	entries, err := Update(t.Context(), snapshot, kinds[0], now, obj, nil, w)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, `{"f:status":{"f:ready":{}}}`, fieldsOfManager(entries, "controller"))
}

func TestUpdate_TracksEachVersion(t *testing.T) {
	t.Parallel()
	atomic := strings.Replace(granularSpec, `"labels":{`, `"labels":{"x-kubernetes-map-type":"atomic",`, 1)
	kinds := widgets(t, granularSpec, atomic)
	v1, v2 := kinds[0], kinds[1]
	snapshot := api.NewRegistry(kinds...).Snapshot()
	obj := widget(t, v1, `"spec":{"replicas":1,"labels":{"a":"1","b":"2"}}}`)
	obj.SetManagedFields(Create(v2, shownIn(t, v2, obj), writerOf(v2, "two")))
	require.Equal(t, `{"f:spec":{".":{},"f:labels":{},"f:replicas":{}}}`, fieldsOfManager(obj.GetManagedFields(), "two"))

	now := widget(t, v1, `"spec":{"replicas":1,"labels":{"a":"1","b":"3"}}}`)
	entries, err := Update(t.Context(), snapshot, v1, now, obj, nil, writerOf(v1, "one"))
	require.NoError(t, err)
	require.Equal(t, `{"f:spec":{"f:labels":{"f:b":{}}}}`, fieldsOfManager(entries, "one"))
	require.Equal(t, `{"f:spec":{".":{},"f:replicas":{}}}`, fieldsOfManager(entries, "two"))

	// A version that is no longer served is tracked too. If a version was removed, the update is not tracked.
	for versions, want := range map[int]string{2: `{"f:spec":{}}`, 1: `{"f:spec":{".":{},"f:replicas":{}}}`} {
		crd := definitionOf([]*props{specOf(t, granularSpec), specOf(t, atomic)}[:versions], true, true)
		for i := range crd.Spec.Versions[1:] {
			crd.Spec.Versions[1+i].Served = false
		}
		v1 := served(t, crd)[0]
		was := widget(t, v1, `"spec":{"replicas":1,"labels":{"a":"1","b":"3"}}}`)
		was.SetManagedFields(entries)
		after, err := Update(t.Context(), api.NewRegistry(v1).Snapshot(), v1,
			widget(t, v1, `"spec":{"replicas":2,"labels":{"a":"1","b":"3"}}}`), was, nil, writerOf(v1, "one"))
		require.NoError(t, err)
		require.Equal(t, want, fieldsOfManager(after, "two"))
	}
}

// Managers of a version cannot be tracked for fields that exist only in another version.
func TestUpdate_KeepsEntriesThatAnotherVersionLacks(t *testing.T) {
	t.Parallel()
	kinds := widgets(t, granularSpec, `{"type":"object","properties":{"replicas":{"type":"integer"}}}`)
	v1, v2 := kinds[0], kinds[1]
	snapshot := api.NewRegistry(kinds...).Snapshot()
	was := widget(t, v1, `"spec":{"replicas":1}}`)
	was.SetManagedFields(Create(v2, shownIn(t, v2, was), writerOf(v2, "two")))
	now := widget(t, v1, `"spec":{"replicas":1,"a0":5}}`)
	entries, err := Update(t.Context(), snapshot, v1, now, was, nil, writerOf(v1, "one"))
	require.NoError(t, err)
	require.Equal(t, was.GetManagedFields(), entries)

	library, err := new(Appliers).Of(t.Context(), api.NewRegistry(kinds...), v1, "")
	require.NoError(t, err)
	now.SetManagedFields(entries)
	_, err = library.Apply(now, patch(t, v1, `{"spec":{"a0":5}}`), "one", false)
	require.ErrorContains(t, err, ".spec.a0: field not declared in schema")
}

func TestAppliers_FailForARemovedVersion(t *testing.T) {
	t.Parallel()
	kinds := widgets(t, granularSpec)
	for apiVersion, want := range map[string]string{
		"example.com/v9": "request to convert CR to an invalid group/version: example.com/v9",
		"apps/v1":        `example.com/v1, Kind=Widget is unstructured and is not suitable for converting to "apps/v1"`,
	} {
		live := widget(t, kinds[0], `"spec":{"replicas":1}}`)
		live.SetManagedFields(Create(kinds[0], live, writerOf(kinds[0], "two")))
		live.ManagedFields[0].APIVersion = apiVersion
		library, err := new(Appliers).Of(t.Context(), api.NewRegistry(kinds...), kinds[0], "")
		require.NoError(t, err)
		_, err = library.Apply(live, patch(t, kinds[0], `{"spec":{"a0":5}}`), "one", true)
		require.EqualError(t, err, want)
	}
}

// When a definition makes a map atomic, the owners of its parts own the whole map.
func TestUpdate_FollowsTheSchema(t *testing.T) {
	t.Parallel()
	before := widgets(t, granularSpec)[0]
	obj := widget(t, before, `"spec":{"replicas":1,"labels":{"a":"1"}}}`)
	entries := Create(before, obj, writerOf(before, "first"))
	after := widgets(t, strings.Replace(granularSpec, `"labels":{`, `"labels":{"x-kubernetes-map-type":"atomic",`, 1))[0]
	old := widget(t, after, `"spec":{"replicas":1,"labels":{"a":"1"}}}`)
	old.SetManagedFields(entries)
	entries, err := Update(t.Context(), api.NewRegistry(after).Snapshot(), after,
		widget(t, after, `"spec":{"replicas":2,"labels":{"a":"1"}}}`), old, nil, writerOf(after, "second"))
	require.NoError(t, err)
	require.Equal(t, `{"f:spec":{".":{},"f:labels":{}}}`, fieldsOfManager(entries, "first"))
}

// patch returns an apply configuration.
func patch(t testing.TB, res *api.Resource, fields string) *unstructured.Unstructured {
	t.Helper()
	var object map[string]any
	require.NoError(t, encoding.Unmarshal([]byte(`{"apiVersion":"`+res.GroupVersion().String()+
		`","kind":"Widget","metadata":{"name":"w"},`+strings.TrimPrefix(fields, "{")), &object))
	return &unstructured.Unstructured{Object: object}
}

func TestAppliers_ApplyCustomResources(t *testing.T) {
	t.Parallel()
	kinds := widgets(t, granularSpec, granularSpec)
	registry := api.NewRegistry(kinds...)
	var all Appliers
	apply := func(live api.Object, res *api.Resource, manager, fields string,
		force bool) (*customresource.Object, error) {
		library, err := all.Of(t.Context(), registry, res, "")
		require.NoError(t, err)
		obj, err := library.Apply(shownIn(t, res, live), patch(t, res, fields), manager, force)
		if err != nil {
			return nil, err
		}
		return obj.(*customresource.Object), nil
	}
	obj, err := apply(Fresh(kinds[0]), kinds[1], "one", `{"spec":{"replicas":1,"labels":{"a":"1","b":"1"}}}`, false)
	require.NoError(t, err)
	require.Equal(t, "example.com/v2", obj.APIVersion)
	require.Equal(t, "example.com/v2", obj.ManagedFields[0].APIVersion)

	_, err = apply(obj, kinds[0], "two", `{"spec":{"replicas":2}}`, false)
	require.True(t, apierrors.IsConflict(err), "%v", err)
	obj, err = apply(obj, kinds[0], "two", `{"spec":{"replicas":2}}`, true)
	require.NoError(t, err)
	require.Equal(t, int64(2), obj.Fields["spec"].(map[string]any)["replicas"])
	require.Equal(t, `{"f:spec":{"f:labels":{"f:a":{},"f:b":{}}}}`, fieldsOfManager(obj.ManagedFields, "one"))

	obj, err = apply(obj, kinds[1], "one", `{"spec":{"labels":{"a":"1"}}}`, false)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"replicas": int64(2), "labels": map[string]any{"a": "1"}}, obj.Fields["spec"])

	_, err = apply(obj, kinds[0], "one", `{"spec":{"unheard":1}}`, false)
	require.ErrorContains(t, err, ".spec.unheard: field not declared in schema")

	update := widget(t, kinds[0], `{"spec":{"replicas":5}}`)
	obj, err = apply(update, kinds[0], "one", `{"spec":{"labels":{"a":"1"}}}`, false)
	require.NoError(t, err)
	require.Equal(t, `{"f:spec":{".":{},"f:replicas":{}}}`, fieldsOfManager(obj.ManagedFields, "before-first-apply"))
}

func TestAppliers_ResetFieldsOfCustomResources(t *testing.T) {
	t.Parallel()
	kinds := widgets(t, granularSpec)
	registry := api.NewRegistry(kinds...)
	var all Appliers
	live := widget(t, kinds[0], `{"spec":{"replicas":5}}`)
	for subresource, want := range map[string]string{
		"":       `{"f:metadata":{"f:labels":{"f:a":{}}},"f:spec":{"f:replicas":{}}}`,
		"status": `{"f:status":{"f:ready":{}}}`,
	} {
		library, err := all.Of(t.Context(), registry, kinds[0], subresource)
		require.NoError(t, err)
		config := patch(t, kinds[0], `{"spec":{"replicas":5},"status":{"ready":true}}`)
		config.SetLabels(map[string]string{"a": "b"})
		obj, err := library.Apply(live.DeepCopyObject(), config, "one", true)
		require.NoError(t, err)
		require.Equal(t, want, fieldsOfManager(obj.(api.Object).GetManagedFields(), "one"), subresource)
	}
}

func TestReplicasPaths_FollowVersions(t *testing.T) {
	t.Parallel()
	kinds := widgets(t, granularSpec, granularSpec)
	kinds[1].Scale = nil
	require.Equal(t, managedfields.ResourcePathMappings{"example.com/v1": fieldpath.MakePathOrDie("spec", "a0"),
		"example.com/v2": nil}, replicasPaths(api.NewRegistry(kinds...).Snapshot(), kinds[0]))
	for _, res := range builtin.Kinds() {
		if res.Plural == "deployments" {
			require.Equal(t, managedfields.ResourcePathMappings{"apps/v1": fieldpath.MakePathOrDie("spec", "replicas")},
				replicasPaths(api.NewRegistry(res).Snapshot(), res))
		}
	}
}

func TestAppliers_KeepEachKindApart(t *testing.T) {
	t.Parallel()
	registry := api.NewRegistry(builtin.Kinds()...)
	pods := registry.Snapshot().Kind(schema.GroupVersionKind{Version: "v1", Kind: "Pod"})
	var all Appliers
	ofPods, err := all.Of(t.Context(), registry, pods, "")
	require.NoError(t, err)
	collected := make(chan struct{})
	gvr := func() schema.GroupVersionResource {
		kinds := widgets(t, granularSpec)
		require.NoError(t, registry.Add(kinds...))
		first, err := all.Of(t.Context(), registry, kinds[0], "")
		require.NoError(t, err)
		require.NoError(t, registry.Add()) // the snapshot changes, but not the kinds
		second, err := all.Of(t.Context(), registry, kinds[0], "")
		require.NoError(t, err)
		require.Same(t, first, second)

		typed, err := all.Types(registry).ObjectToTyped(patch(t, kinds[0], `{"spec":{"labels":{"a":"1"}}}`))
		require.NoError(t, err)
		require.NoError(t, RejectAtomics(typed))
		runtime.AddCleanup(kinds[0], func(done chan struct{}) { close(done) }, collected)
		return kinds[0].GroupVersion().WithResource(kinds[0].Plural)
	}()
	require.NoError(t, registry.Replace([]*api.Resource{registry.Snapshot().Resource(gvr)}, nil))
	again, err := all.Of(t.Context(), registry, pods, "")
	require.NoError(t, err)
	require.Same(t, ofPods, again, "other kinds come and go")
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case <-collected:
			return true
		default:
			return false
		}
	}, 10*time.Second, time.Millisecond, "what belongs to a kind is collected with it")
	_, err = all.Types(registry).ObjectToTyped(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget"}})
	require.Error(t, err)
}
