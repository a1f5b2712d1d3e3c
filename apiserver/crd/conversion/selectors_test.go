package conversion_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coxswain-dev/coxswain/apiserver"
)

func names(list *unstructured.UnstructuredList) (names []string) {
	for _, o := range list.Items {
		names = append(names, o.GetName())
	}
	return names
}

// Field selectors refer to the fields of the request's version, wherever the stored version has them.
func TestFieldSelectors_UseTheRequestedVersion(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	ctx := t.Context()
	for i := range 6 {
		c.create("v2", fmt.Sprint("e", i), object{"address": fmt.Sprintf("h%d:%d", i%2, i)})
	}
	list := func(version schema.GroupVersionResource, selector string) ([]string, error) {
		found, err := c.in(version).List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return nil, err
		}
		return names(found), nil
	}
	for _, c := range []struct {
		version  schema.GroupVersionResource
		selector string
		want     []string
	}{
		{v1, "spec.host=h1", []string{"e1", "e3", "e5"}}, {v1, "spec.host!=h1", []string{"e0", "e2", "e4"}},
		{v1, "spec.host=h1,metadata.name=e3", []string{"e3"}}, {v1, "spec.host=none", nil},
		{v2, "spec.address=h1:3", []string{"e3"}},
	} {
		found, err := list(c.version, c.selector)
		require.NoError(t, err, c.selector)
		require.Equal(t, c.want, found, c.selector)
	}
	_, err := list(v1, "spec.address=h1:3")
	require.ErrorContains(t, err, "field label not supported: spec.address")

	var paged []string
	for page := (metav1.ListOptions{FieldSelector: "spec.host=h1", Limit: 4}); ; {
		found, err := c.in(v1).List(ctx, page)
		require.NoError(t, err)
		require.Nil(t, found.GetRemainingItemCount())
		paged = append(paged, names(found)...)
		if page.Continue = found.GetContinue(); page.Continue == "" {
			break
		}
	}
	require.Equal(t, []string{"e1", "e3", "e5"}, paged)

	require.NoError(t, c.in(v1).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "spec.host=h1"}))
	found, err := list(v2, "")
	require.NoError(t, err)
	require.Equal(t, []string{"e0", "e2", "e4"}, found)

	c.redefine(func(crd *unstructured.Unstructured) {
		versions := crd.Object["spec"].(object)["versions"].([]any)
		versions[0].(object)["storage"], versions[1].(object)["storage"] = true, false
	})
	found, err = list(v1, "spec.host=h0")
	require.NoError(t, err)
	require.Equal(t, []string{"e0", "e2", "e4"}, found, "stored in the older version")
}

// A watch reports objects as added or deleted when their fields, in its version, start or stop matching.
func TestFieldSelectors_FilterWatches(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c.create("v2", "a", object{"address": "in:1"})
	c.create("v2", "b", object{"address": "out:1"})
	w, err := c.in(v1).Watch(ctx, metav1.ListOptions{FieldSelector: "spec.host=in"})
	require.NoError(t, err)
	defer w.Stop()
	expect := func(of watch.EventType, name string, port int64) {
		t.Helper()
		e := next(t, w)
		require.Equal(t, of, e.Type)
		o := e.Object.(*unstructured.Unstructured)
		require.Equal(t, name, o.GetName())
		require.Equal(t, object{"host": "in", "port": port}, o.Object["spec"])
	}
	set := func(name, address string) string {
		changed, err := c.patch(v2, name, `{"spec":{"address":"`+address+`"}}`)
		require.NoError(t, err)
		return changed.GetResourceVersion()
	}
	expect(watch.Added, "a", 1)
	set("a", "in:2")
	expect(watch.Modified, "a", 2)
	set("b", "out:2")
	set("b", "in:3")
	expect(watch.Added, "b", 3)
	left := set("a", "out:3")
	e := next(t, w)
	require.Equal(t, watch.Deleted, e.Type)
	deleted := e.Object.(*unstructured.Unstructured)
	require.Equal(t, object{"host": "in", "port": int64(2)}, deleted.Object["spec"], "as it was")
	require.Equal(t, left, deleted.GetResourceVersion())
	require.NoError(t, c.in(v2).Delete(ctx, "a", metav1.DeleteOptions{}))
	require.NoError(t, c.in(v2).Delete(ctx, "b", metav1.DeleteOptions{}))
	expect(watch.Deleted, "b", 3)
}
