package conversion_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coxswain-dev/coxswain/apiserver"
)

const path = "/apis/example.com/%s/namespaces/default/endpoints"

// Every verb works in each version, regardless of the stored one.
func TestVerbs_InEachVersion(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	ctx := t.Context()
	made := c.create("v1", "a", object{"host": "a", "unknown": true})
	require.Equal(t, object{"host": "a", "port": int64(80)}, made.Object["spec"], "defaulted in its version, and pruned")
	require.Equal(t, "example.com/v1", made.GetAPIVersion())
	c.create("v2", "b", object{"address": "b:1", "tags": []any{"x"}})
	require.Equal(t, object{"address": "a:80"}, c.get(v2, "a")["spec"])
	require.Equal(t, object{"host": "b", "port": int64(1), "tags": []any{"x"}}, c.get(v1, "b")["spec"])

	made.Object["spec"] = object{"host": "c", "port": int64(2)}
	made, err := c.in(v1).Update(ctx, made, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, made.GetGeneration())
	require.Equal(t, object{"address": "c:2"}, c.get(v2, "a")["spec"])
	same, err := c.in(v1).Update(ctx, made, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, made.GetResourceVersion(), same.GetResourceVersion(), "nothing has changed")

	patched, err := c.patch(v1, "a", `{"spec":{"port":3}}`)
	require.NoError(t, err)
	require.Equal(t, object{"host": "c", "port": int64(3)}, patched.Object["spec"])
	patched, err = c.in(v1).Patch(ctx, "a", types.JSONPatchType,
		[]byte(`[{"op":"test","path":"/spec/port","value":3},{"op":"replace","path":"/spec/host","value":"d"}]`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, object{"host": "d", "port": int64(3)}, patched.Object["spec"])
	_, err = c.patch(v1, "a", `{"spec":{"host":"a name that is too long for this version"}}`)
	require.ErrorContains(t, err, "spec.host: Too long", "validated in its version")

	patched, err = c.patch(v1, "a", `{"status":{"ready":true},"spec":{"host":"not this"}}`, "status")
	require.NoError(t, err)
	require.Equal(t, object{"ready": true}, patched.Object["status"])
	require.Equal(t, "d", patched.Object["spec"].(object)["host"])
	require.Equal(t, object{"phase": "Ready"}, c.get(v2, "a")["status"])

	scaled, err := c.patch(v1, "a", `{"spec":{"replicas":9}}`, "scale")
	require.NoError(t, err)
	require.Equal(t, "Scale", scaled.GetKind())
	require.Equal(t, object{"address": "d:9"}, c.get(v2, "a")["spec"])

	before := c.get(v2, "a")
	_, err = c.in(v1).Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"port":4}}`),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	require.Equal(t, before, c.get(v2, "a"))
	require.EqualValues(t, 9, c.get(v1, "a")["spec"].(object)["port"], "nor has a dry run been taken for what is stored")

	for version, host := range map[schema.GroupVersionResource]object{
		v1: {"host": "b", "port": int64(1), "tags": []any{"x"}}, v2: {"address": "b:1", "tags": []any{"x"}}} {
		list, err := c.in(version).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, 2)
		require.Equal(t, version.GroupVersion().String(), list.GetAPIVersion())
		require.Equal(t, version.GroupVersion().String(), list.Items[0].GetAPIVersion())
		require.Equal(t, host, list.Items[1].Object["spec"])
	}
	_, err = c.patch(v1, "a", `{"metadata":{"finalizers":["example.com/hold"]}}`)
	require.NoError(t, err)
	require.NoError(t, c.in(v1).Delete(ctx, "a", metav1.DeleteOptions{}))
	require.NotNil(t, c.get(v2, "a")["metadata"].(object)["deletionTimestamp"])
	require.Equal(t, object{"address": "d:9"}, c.get(v2, "a")["spec"])
	_, err = c.patch(v1, "a", `{"metadata":{"finalizers":null}}`)
	require.NoError(t, err)
	require.NoError(t, c.in(v1).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	list, err := c.in(v2).List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, list.Items)
}

// A list converts all objects in one call, and makes no call for objects that have the version already.
func TestList_CallsTheWebhookOnce(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	const n = 20
	for i := range n {
		c.create("v2", fmt.Sprintf("e%02d", i), object{"address": fmt.Sprintf("h:%d", i)})
	}
	require.Empty(t, c.hook.asked(), "objects of the stored version")
	list, err := c.in(v1).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, n)
	for i, o := range list.Items {
		require.Equal(t, object{"host": "h", "port": int64(i)}, o.Object["spec"])
	}
	reviews := c.hook.asked()
	require.Len(t, reviews, 1)
	require.Len(t, reviews[0].Request.Objects, n)
	require.Equal(t, "example.com/v1", reviews[0].Request.DesiredAPIVersion)
	require.Equal(t, "apiextensions.k8s.io/v1", reviews[0].APIVersion)
	list, err = c.in(v2).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, n)
	require.Empty(t, c.hook.asked())
}

func TestList_AsTableAndMetadata(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	c.create("v2", "a", object{"address": "h:1"})
	c.hook.answers(func(w http.ResponseWriter, _ *http.Request, asked review) {
		doc := success(asked)
		for _, o := range doc["response"].(object)["convertedObjects"].([]any) {
			o.(object)["metadata"].(object)["labels"] = object{"converted": "yes"}
		}
		reply(w, doc)
	})
	for _, suffix := range []string{"", "/a"} {
		code, table := c.raw(t.Context(), http.MethodGet, fmt.Sprintf(path, "v1")+suffix+"?includeObject=Object",
			"application/json;as=Table;v=v1;g=meta.k8s.io")
		require.Equal(t, http.StatusOK, code)
		var read metav1.Table
		require.NoError(t, json.Unmarshal([]byte(table), &read))
		require.Equal(t, "Host", read.ColumnDefinitions[1].Name)
		require.Equal(t, []any{"a", "h"}, read.Rows[0].Cells)
		require.Contains(t, string(read.Rows[0].Object.Raw), `"apiVersion":"example.com/v1"`)
	}
	for suffix, as := range map[string]string{"": "PartialObjectMetadataList", "/a": "PartialObjectMetadata"} {
		code, partial := c.raw(t.Context(), http.MethodGet, fmt.Sprintf(path, "v1")+suffix,
			"application/json;as="+as+";v=v1;g=meta.k8s.io")
		require.Equal(t, http.StatusOK, code)
		require.Contains(t, partial, `"labels":{"converted":"yes"}`)
	}
	const watched = "?watch=1&resourceVersion=0&timeoutSeconds=1&includeObject=None"
	code, table := c.raw(t.Context(), http.MethodGet, fmt.Sprintf(path, "v1")+watched,
		"application/json;as=Table;v=v1;g=meta.k8s.io")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, table, `"name":"Host"`)
	require.Contains(t, table, `"cells":["a","h"]`)
	code, partial := c.raw(t.Context(), http.MethodGet, fmt.Sprintf(path, "v1")+watched,
		"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, partial, `"labels":{"converted":"yes"}`)
	require.Nil(t, c.get(v2, "a")["metadata"].(object)["labels"])
}

// next returns the next event of a watch.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, open := <-w.ResultChan():
		require.True(t, open, "the watch has ended")
		return e
	case <-t.Context().Done():
	}
	t.Fatal("no event")
	return watch.Event{}
}

func TestWatch_InEachVersion(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := range 10 {
		c.create("v2", fmt.Sprint("e", i), object{"address": fmt.Sprintf("h:%d", i)})
	}
	initial, bookmarks := true, true
	options := metav1.ListOptions{SendInitialEvents: &initial, AllowWatchBookmarks: bookmarks,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	specs := func(i int) map[schema.GroupVersionResource]object {
		return map[schema.GroupVersionResource]object{v1: {"host": "h", "port": int64(i)},
			v2: {"address": fmt.Sprintf("h:%d", i)}}
	}
	watches := map[schema.GroupVersionResource][]watch.Interface{}
	for _, version := range []schema.GroupVersionResource{v1, v1, v2} {
		w, err := c.in(version).Watch(ctx, options)
		require.NoError(t, err)
		defer w.Stop()
		for i := range 10 {
			e := next(t, w)
			require.Equal(t, watch.Added, e.Type)
			require.Equal(t, specs(i)[version], e.Object.(*unstructured.Unstructured).Object["spec"])
		}
		e := next(t, w)
		require.Equal(t, watch.Bookmark, e.Type)
		bookmark := e.Object.(*unstructured.Unstructured)
		require.Equal(t, version.GroupVersion().String(), bookmark.GetAPIVersion())
		require.NotContains(t, bookmark.Object, "spec", "nothing is defaulted")
		watches[version] = append(watches[version], w)
	}
	reviews := c.hook.asked()
	require.NotEmpty(t, reviews)
	for _, r := range reviews {
		require.Len(t, r.Request.Objects, 10, "all initial objects at once")
	}

	_, err := c.patch(v2, "e3", `{"spec":{"address":"h:42"}}`)
	require.NoError(t, err)
	require.NoError(t, c.in(v2).Delete(ctx, "e3", metav1.DeleteOptions{}))
	for version, all := range watches {
		for _, w := range all {
			for _, want := range []watch.EventType{watch.Modified, watch.Deleted} {
				e := next(t, w)
				require.Equal(t, want, e.Type)
				require.Equal(t, specs(42)[version], e.Object.(*unstructured.Unstructured).Object["spec"])
			}
		}
	}
}

func managers(o *unstructured.Unstructured) map[string]string {
	all := map[string]string{}
	for _, e := range o.GetManagedFields() {
		all[e.Manager+" "+string(e.Operation)+" "+e.APIVersion] = string(e.FieldsV1.GetRawBytes())
	}
	return all
}

func TestApply_FromEachVersion(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	ctx := t.Context()
	apply := func(version, manager string, spec object, force bool) (*unstructured.Unstructured, error) {
		return c.in(endpoints(version)).Apply(ctx, "a", endpoint(version, "a", spec),
			metav1.ApplyOptions{FieldManager: manager, Force: force})
	}
	made, err := apply("v1", "one", object{"host": "h", "port": int64(1)}, false)
	require.NoError(t, err)
	require.Equal(t, object{"host": "h", "port": int64(1)}, made.Object["spec"])
	require.Equal(t, map[string]string{"one Apply example.com/v1": `{"f:spec":{"f:host":{},"f:port":{}}}`},
		managers(made))
	require.Equal(t, object{"address": "h:1"}, c.get(v2, "a")["spec"])

	made, err = apply("v2", "two", object{"address": "h:1"}, false)
	require.NoError(t, err, "the same value in the other version is no conflict")
	require.Equal(t, map[string]string{"one Apply example.com/v1": `{"f:spec":{"f:host":{},"f:port":{}}}`,
		"two Apply example.com/v2": `{"f:spec":{"f:address":{}}}`}, managers(made))

	_, err = apply("v2", "two", object{"address": "h:2"}, false)
	require.ErrorContains(t, err, `conflict with "one": .spec.port`)
	made, err = apply("v2", "two", object{"address": "h:2"}, true)
	require.NoError(t, err)
	require.Equal(t, object{"address": "h:2"}, made.Object["spec"])
	require.Equal(t, map[string]string{"one Apply example.com/v1": `{"f:spec":{"f:host":{}}}`,
		"two Apply example.com/v2": `{"f:spec":{"f:address":{}}}`}, managers(made))

	made, err = c.patch(v1, "a", `{"spec":{"tags":["x"],"port":3}}`)
	require.NoError(t, err)
	have := managers(made)
	require.Equal(t, `{"f:spec":{"f:host":{}}}`, have["one Apply example.com/v1"])
	require.NotContains(t, have, "two Apply example.com/v2", "its field has changed in its version")
	require.Len(t, have, 2)
	require.Equal(t, object{"address": "h:3", "tags": []any{"x"}}, c.get(v2, "a")["spec"])
}

// After the storage version changes, a write stores an object in the new version even if its content stays the
// same.
func TestStorageVersion_MigratesOnWrite(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	c.create("v2", "a", object{"address": "h:1"})
	was := c.create("v2", "b", object{"address": "h:2"})
	c.redefine(func(crd *unstructured.Unstructured) {
		versions := crd.Object["spec"].(object)["versions"].([]any)
		versions[0].(object)["storage"], versions[1].(object)["storage"] = true, false
	})
	c.hook.asked()
	require.Equal(t, object{"host": "h", "port": int64(1)}, c.get(v1, "a")["spec"], "stored in the older version")
	require.Equal(t, object{"address": "h:1"}, c.get(v2, "a")["spec"])
	require.Len(t, c.hook.asked(), 1)

	migrated, err := c.patch(v2, "b", `{}`)
	require.NoError(t, err)
	c.hook.asked()
	list, err := c.in(v1).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, names(list))
	for _, r := range c.hook.asked() {
		require.Len(t, r.Request.Objects, 1, "b is in the version already")
	}
	require.NotEqual(t, was.GetResourceVersion(), migrated.GetResourceVersion(), "it is stored anew")
	require.Equal(t, was.GetGeneration(), migrated.GetGeneration())
	c.hook.answers(func(w http.ResponseWriter, _ *http.Request, _ review) { w.WriteHeader(http.StatusTeapot) })
	require.Equal(t, object{"host": "h", "port": int64(2)}, c.get(v1, "b")["spec"], "as it is stored")
	c.hook.answers(nil)
	again, err := c.patch(v1, "b", `{}`)
	require.NoError(t, err)
	require.Equal(t, migrated.GetResourceVersion(), again.GetResourceVersion())
}
