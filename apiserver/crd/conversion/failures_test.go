package conversion_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coxswain-dev/coxswain/apiserver"
)

// badAnswers lists invalid answers of a webhook, with a part of the resulting error.
var badAnswers = []struct {
	name string
	do   func(h *hook)
	want string
}{
	{"nothing", writes(""), "the answer is not a ConversionReview"},
	{"no JSON", writes("<html>"), "the answer is not a ConversionReview"},
	{"a list", writes("[]"), "the answer is not a ConversionReview"},
	{"null", writes("null"), "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got /, Kind="},
	{"half of it", writes(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"Conv`), "the answer is not a ConversionReview"},
	{"deep", writes(strings.Repeat("[", 100_000)), "nested more than 500 levels deep"},
	{"10 MB", func(h *hook) {
		h.answers(func(w http.ResponseWriter, _ *http.Request, _ review) {
			_, _ = w.Write(bytes.Repeat([]byte(" "), 10<<20))
		})
	}, "the answer is too large: more than 8388608 bytes"},
	{"an error", code(http.StatusInternalServerError), `an error on the server ("unknown") has prevented the request`},
	{"not found", code(http.StatusNotFound), "the server could not find the requested resource"},
	{"no content", code(http.StatusNoContent), "the answer is not a ConversionReview"},
	{"a redirect", func(h *hook) {
		h.answers(func(w http.ResponseWriter, r *http.Request, asked review) {
			if r.URL.Path == "/elsewhere" {
				reply(w, success(asked))
				return
			}
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		})
	}, "the server responded with the status code 307"},
	{"a cut connection", func(h *hook) {
		h.answers(func(http.ResponseWriter, *http.Request, review) { panic(http.ErrAbortHandler) })
	}, "EOF"},
	{"another kind", set("Review", "kind"), "got apiextensions.k8s.io/v1, Kind=Review"},
	{"another version", set("apiextensions.k8s.io/v1beta1", "apiVersion"), "got apiextensions.k8s.io/v1beta1"},
	{"no response", set(nil, "response"), "no response provided"},
	{"another uid", set("other", "response", "uid"), `got "other"`},
	{"a failure", set(object{"status": "Failure", "message": "not today"}, "response", "result"), "failed: not today"},
	{"a failure without words", set(object{"status": "Failure"}, "response", "result"),
		"response.result.status was 'Failure', not 'Success'"},
	{"no result", set(nil, "response", "result"), "response.result.status was '', not 'Success'"},
	{"no objects", set([]any{}, "response", "convertedObjects"), "returned 0 objects, expected 1"},
	{"too many objects", set([]any{object{}, object{}}, "response", "convertedObjects"), "returned 2 objects, expected 1"},
	{"objects without end", func(h *hook) {
		h.answers(func(w http.ResponseWriter, _ *http.Request, asked review) {
			_, _ = fmt.Fprintf(w, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","response":{"uid":%q,
				"result":{"status":"Success"},"convertedObjects":[%s0]}}`, asked.Request.UID, strings.Repeat("0,", 1<<20))
		})
	}, "returned 1048577 objects, expected 1"},
	{"an object for the objects", set(object{}, "response", "convertedObjects"), "convertedObjects is not a list"},
	{"no list of objects", set(nil, "response", "convertedObjects"), "returned 0 objects, expected 1"},
	{"null for an object", set([]any{nil}, "response", "convertedObjects"), "Object 'Kind' is missing"},
	{"a text for an object", set([]any{"x"}, "response", "convertedObjects"), "returned invalid object"},
	{"no kind", inObject(nil, "kind"), "Object 'Kind' is missing"},
	{"the kind of others", inObject("Gadget", "kind"),
		"returned invalid object at index 0: invalid kind (expected Endpoint, received Gadget)"},
	{"a version of others", inObject("example.com/v0", "apiVersion"),
		"returned invalid object at index 0: invalid groupVersion (expected example.com/v1, received example.com/v0)"},
	{"no version", inObject(nil, "apiVersion"), "invalid groupVersion (expected example.com/v1, received )"},
	{"another name", inObject("b", "metadata", "name"), "returned invalid object: must have the same name: a != b"},
	{"another namespace", inObject("other", "metadata", "namespace"), "must have the same namespace: default != other"},
	{"another uid of the object", inObject("other", "metadata", "uid"), "must have the same UID"},
	{"no uid of the object", inObject(nil, "metadata", "uid"), "must have the same UID"},
	{"no metadata", inObject(nil, "metadata"), "must have the same name: a != "},
	{"labels of another type", inObject("x", "metadata", "labels"),
		"returned invalid metadata: invalid metadata.labels of type string in converted object"},
	{"a number as a label", inObject(object{"a": 1}, "metadata", "labels"),
		"metadata.labels[a] must be a string, but is int64 in converted object"},
	{"a bad label", inObject(object{"a": "b c"}, "metadata", "labels"), `metadata.labels: Invalid value: "b c"`},
	{"a bad annotation", inObject(object{"a b": "c"}, "metadata", "annotations"),
		`metadata.annotation: Invalid value: "a b"`},
	{"annotations without end", inObject(object{"a": strings.Repeat("x", 300<<10)}, "metadata", "annotations"),
		"metadata.annotation: Too long"},
}

func writes(body string) func(h *hook) {
	return func(h *hook) {
		h.answers(func(w http.ResponseWriter, _ *http.Request, _ review) { _, _ = w.Write([]byte(body)) })
	}
}

func code(code int) func(h *hook) {
	return func(h *hook) {
		h.answers(func(w http.ResponseWriter, _ *http.Request, _ review) { w.WriteHeader(code) })
	}
}

// set returns a behaviour that sets or removes a value in a valid answer.
func set(value any, path ...string) func(h *hook) {
	return func(h *hook) { h.replies(func(doc object) { place(doc, value, path) }) }
}

// inObject returns a behaviour that sets or removes a value in each converted object.
func inObject(value any, path ...string) func(h *hook) {
	return func(h *hook) {
		h.replies(func(doc object) {
			for _, o := range doc["response"].(object)["convertedObjects"].([]any) {
				place(o.(object), value, path)
			}
		})
	}
}

func place(in object, value any, path []string) {
	for _, name := range path[:len(path)-1] {
		in = in[name].(object)
	}
	if in[path[len(path)-1]] = value; value == nil {
		delete(in, path[len(path)-1])
	}
}

// An invalid answer fails the requests that need it, and does not change stored objects.
func TestBadAnswers_AreErrors(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	ctx := t.Context()
	stored := c.create("v2", "a", object{"address": "h:1"})
	for _, bad := range badAnswers {
		bad.do(c.hook)
		_, err := c.in(v1).Get(ctx, "a", metav1.GetOptions{})
		require.ErrorContains(t, err, bad.want, bad.name)
		require.ErrorContains(t, err, "conversion webhook for example.com/v2, Kind=Endpoint ", bad.name)
		require.Equal(t, int32(http.StatusInternalServerError), err.(apierrors.APIStatus).Status().Code, bad.name)
		for _, err := range []error{
			erred(c.in(v1).List(ctx, metav1.ListOptions{})),
			erred(c.in(v1).Create(ctx, endpoint("v1", "n", object{"host": "h"}), metav1.CreateOptions{})),
			erred(c.patch(v1, "a", `{"spec":{"port":9}}`)),
			erred(c.patch(v1, "a", `{"status":{"ready":true}}`, "status")),
			erred(c.in(v1).Apply(ctx, "a", endpoint("v1", "a", object{"host": "x"}),
				metav1.ApplyOptions{FieldManager: "m", Force: true})),
			c.in(v1).Delete(ctx, "a", metav1.DeleteOptions{}),
		} {
			require.ErrorContains(t, err, "conversion webhook for example.com/v", bad.name)
		}
		all, err := c.in(v2).List(ctx, metav1.ListOptions{})
		require.NoError(t, err, bad.name)
		require.Len(t, all.Items, 1, bad.name)
		require.Equal(t, stored.Object, all.Items[0].Object, bad.name)
	}
	c.hook.answers(nil)
	require.Equal(t, object{"host": "h", "port": int64(1)}, c.get(v1, "a")["spec"], "a failure is not remembered")
}

func erred[T any](_ T, err error) error { return err }

// An error about one of several objects gives its index.
func TestBadAnswers_AboutLists(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	c.create("v2", "a", object{"address": "h:1"})
	c.create("v2", "b", object{"address": "h:2"})
	second := func(value any, path ...string) func(doc object) {
		return func(doc object) {
			place(doc["response"].(object)["convertedObjects"].([]any)[1].(object), value, path)
		}
	}
	for want, change := range map[string]func(doc object){
		"returned 1 objects, expected 2": func(doc object) {
			r := doc["response"].(object)
			r["convertedObjects"] = r["convertedObjects"].([]any)[:1]
		},
		"returned invalid converted object at index 0: must have the same name: a != b": func(doc object) {
			all := doc["response"].(object)["convertedObjects"].([]any)
			all[0], all[1] = all[1], all[0]
		},
		"returned invalid converted object at index 1: invalid kind": second("X", "kind"),
		"returned invalid metadata in object at index 1":             second("X", "metadata", "labels"),
	} {
		c.hook.replies(change)
		_, err := c.in(v1).List(t.Context(), metav1.ListOptions{})
		require.ErrorContains(t, err, "conversion webhook for example.com/v1, Kind=EndpointList "+want)
	}
}

// Conversion may change labels and annotations only; the remaining metadata is kept.
func TestMetadata_IsKept(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	made := c.create("v2", "a", object{"address": "h:1"})
	c.hook.replies(func(doc object) {
		metadata := doc["response"].(object)["convertedObjects"].([]any)[0].(object)["metadata"].(object)
		metadata["labels"] = object{"a": "b"}
		metadata["annotations"] = object{"c": "d"}
		metadata["finalizers"] = []any{"example.com/odd"}
		metadata["ownerReferences"] = "odd"
		metadata["generation"], metadata["resourceVersion"], metadata["creationTimestamp"] = 99, "odd", 7
		delete(metadata, "managedFields")
	})
	got := c.get(v1, "a")["metadata"].(object)
	require.Equal(t, object{"a": "b"}, got["labels"])
	require.Equal(t, object{"c": "d"}, got["annotations"])
	want := made.Object["metadata"].(object)
	delete(got, "labels")
	delete(got, "annotations")
	require.Equal(t, want, got)
}

// Only the requests that need an unresponsive webhook wait for it, within their deadlines.
func TestHangingWebhook_BlocksNoOtherRequests(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	ctx := t.Context()
	c.create("v2", "a", object{"address": "h:1"})
	hanging, arrived, left := make(chan struct{}), make(chan struct{}, 100), make(chan struct{}, 100)
	c.hook.answers(func(_ http.ResponseWriter, r *http.Request, _ review) {
		arrived <- struct{}{}
		select {
		case <-hanging:
		case <-r.Context().Done():
			left <- struct{}{}
		}
	})
	defer close(hanging)
	got := make(chan error, 1)
	within, cancel := context.WithCancel(ctx)
	go func() {
		_, err := c.in(v1).Get(within, "a", metav1.GetOptions{})
		got <- err
	}()
	<-arrived
	require.Equal(t, object{"address": "h:1"}, c.get(v2, "a")["spec"])
	pods := c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"})
	_, err := pods.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	cancel()
	require.Error(t, <-got)
	<-left // the call ended with its request

	code, body := c.raw(ctx, http.MethodGet, fmt.Sprintf(path, "v1")+"/a?timeout=300ms", "application/json")
	require.Contains(t, []int{http.StatusInternalServerError, http.StatusGatewayTimeout}, code, body)
}

// A write in the stored version calls the webhook only to convert field owners of another version, and keeps them
// if it fails.
func TestFailingWebhook_KeepsFieldOwners(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	made := c.create("v1", "a", object{"host": "h", "port": int64(1)})
	code(http.StatusInternalServerError)(c.hook)
	patched, err := c.in(v2).Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"address":"g:2"}}`),
		metav1.PatchOptions{FieldManager: "other"})
	require.NoError(t, err)
	require.Equal(t, object{"address": "g:2"}, patched.Object["spec"])
	require.Equal(t, made.GetManagedFields(), patched.GetManagedFields())
	require.Equal(t, "example.com/v1", patched.GetManagedFields()[0].APIVersion)
}

// A watch that cannot continue ends with an error event; others are not affected.
func TestFailingWebhook_EndsItsWatches(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	list, err := c.in(v2).List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	from := metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}
	broken, err := c.in(v1).Watch(ctx, from)
	require.NoError(t, err)
	defer broken.Stop()
	well, err := c.in(v2).Watch(ctx, from)
	require.NoError(t, err)
	defer well.Stop()
	code(http.StatusInternalServerError)(c.hook)
	c.create("v2", "a", object{"address": "h:1"})
	e := next(t, broken)
	require.Equal(t, watch.Error, e.Type)
	require.ErrorContains(t, apierrors.FromObject(e.Object), "conversion webhook for example.com/v2, Kind=Endpoint failed")
	require.Equal(t, watch.Added, next(t, well).Type)
	c.hook.answers(nil)
	again, err := c.in(v1).Watch(ctx, from)
	require.NoError(t, err)
	defer again.Stop()
	require.Equal(t, object{"host": "h", "port": int64(1)}, next(t, again).Object.(*unstructured.Unstructured).Object["spec"])
}

// Deleting a definition needs no webhook, even if objects are stored in another version.
func TestDeletionOfADefinition_NeedsNoWebhook(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	ctx := t.Context()
	c.create("v2", "a", object{"address": "h:1"})
	blocked := c.create("v2", "b", object{"address": "h:1"})
	blocked.SetFinalizers([]string{"example.com/hold"})
	_, err := c.in(v2).Update(ctx, blocked, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.redefine(func(crd *unstructured.Unstructured) {
		versions := crd.Object["spec"].(object)["versions"].([]any)
		versions[0].(object)["storage"], versions[1].(object)["storage"] = true, false
	})
	c.hook.Close()
	require.NoError(t, c.Resource(definitions).Delete(ctx, "endpoints.example.com", metav1.DeleteOptions{}))
	objects := c.Store.Collection("example.com/endpoints", c.collectionOptions())
	require.Eventually(t, func() bool { return objects.Count() == 1 }, patience, tick)
	require.Eventually(t, func() bool {
		return strings.Contains(c.storedDocument("b"), `"deletionTimestamp"`)
	}, patience, tick)
	require.Contains(t, c.storedDocument("b"), `{"apiVersion":"example.com/v2"`, "it stays in its version")
}
