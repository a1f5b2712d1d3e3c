package apiserver_test

import (
	"context"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	apiregistration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	metrics "k8s.io/metrics/pkg/client/clientset/versioned"
)

const (
	protobuf = "application/vnd.kubernetes.protobuf"
	cborType = "application/cbor"
)

func init() {
	// client-go reads its feature gates once. This one lets clients be configured for CBOR.
	_ = os.Setenv("KUBE_FEATURE_ClientsAllowCBOR", "true")
}

// kindClient is the common interface of client-go's clients, for one kind. Arguments are documents, and results are
// objects with metadata.
type kindClient interface {
	create(ctx context.Context, doc m, opts metav1.CreateOptions) (runtime.Object, error)
	update(ctx context.Context, obj runtime.Object, subresource string) (runtime.Object, error)
	get(ctx context.Context, name string) (runtime.Object, error)
	list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error)
	watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	patch(ctx context.Context, name string, kind types.PatchType, body []byte, opts metav1.PatchOptions,
		subresource ...string) (runtime.Object, error)
	delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	deleteCollection(ctx context.Context, opts metav1.DeleteOptions, list metav1.ListOptions) error
}

// kindClients returns a client for one kind.
type kindClients func(t *testing.T, gvr schema.GroupVersionResource, namespace string) kindClient

// typedClients returns client-go's generated clients, in a format.
func typedClients(t *testing.T, s *server, format string) kindClients {
	t.Helper()
	config := rest.CopyConfig(s.config)
	config.ContentType, config.AcceptContentTypes = format, format
	set, err := kubernetes.NewForConfigAndClient(config, s.http)
	require.NoError(t, err)
	ofMetrics, err := metrics.NewForConfigAndClient(config, s.http)
	require.NoError(t, err)
	accessors := map[schema.GroupVersionResource]reflect.Value{}
	definitions, err := apiextensions.NewForConfigAndClient(config, s.http)
	require.NoError(t, err)
	registrations, err := apiregistration.NewForConfigAndClient(config, s.http)
	require.NoError(t, err)
	for _, clients := range []any{set, ofMetrics, definitions, registrations} {
		for _, group := range reflect.ValueOf(clients).Methods() {
			if group.Type().NumIn() != 0 || group.Type().NumOut() != 1 {
				continue
			}
			versioned, ok := group.Call(nil)[0].Interface().(interface{ RESTClient() rest.Interface })
			if !ok {
				continue
			}
			gv := versioned.RESTClient().APIVersion()
			for method, accessor := range reflect.ValueOf(versioned).Methods() {
				resource := strings.ToLower(method.Name)
				if singular, ok := strings.CutSuffix(resource, "metricses"); ok { // PodMetricses are at .../pods
					resource = singular + "s"
				}
				accessors[gv.WithResource(resource)] = accessor
			}
		}
	}
	return func(t *testing.T, gvr schema.GroupVersionResource, namespace string) kindClient {
		t.Helper()
		accessor, ok := accessors[gvr]
		require.True(t, ok, "client-go has no client for %s", gvr)
		var args []reflect.Value
		if accessor.Type().NumIn() == 1 {
			args = []reflect.Value{reflect.ValueOf(namespace)}
		}
		return typedClient{accessor.Call(args)[0]}
	}
}

// typedClient calls the methods of a generated client by their names.
type typedClient struct{ client reflect.Value }

func (c typedClient) call(method string, args ...any) (any, error) {
	f := c.client.MethodByName(method)
	if !f.IsValid() {
		return nil, errNoSuchMethod
	}
	values := make([]reflect.Value, len(args))
	for i, a := range args {
		values[i] = reflect.ValueOf(a)
	}
	results := f.Call(values)
	err, _ := results[len(results)-1].Interface().(error)
	return results[0].Interface(), err
}

func (c typedClient) object(method string, args ...any) (runtime.Object, error) {
	obj, err := c.call(method, args...)
	if err != nil {
		return nil, err
	}
	return obj.(runtime.Object), nil
}

func (c typedClient) create(ctx context.Context, doc m, opts metav1.CreateOptions) (runtime.Object, error) {
	obj := reflect.New(c.client.MethodByName("Create").Type().In(1).Elem()).Interface()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(doc, obj); err != nil {
		return nil, err
	}
	return c.object("Create", ctx, obj, opts)
}

func (c typedClient) update(ctx context.Context, obj runtime.Object, subresource string) (runtime.Object, error) {
	switch subresource {
	case "":
		return c.object("Update", ctx, obj, metav1.UpdateOptions{})
	case "status":
		return c.object("UpdateStatus", ctx, obj, metav1.UpdateOptions{})
	}
	return nil, errNoSuchMethod
}

func (c typedClient) get(ctx context.Context, name string) (runtime.Object, error) {
	return c.object("Get", ctx, name, metav1.GetOptions{})
}

func (c typedClient) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	return c.object("List", ctx, opts)
}

func (c typedClient) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	w, err := c.call("Watch", ctx, opts)
	if err != nil {
		return nil, err
	}
	return w.(watch.Interface), nil
}

func (c typedClient) patch(ctx context.Context, name string, kind types.PatchType, body []byte,
	opts metav1.PatchOptions, subresource ...string) (runtime.Object, error) {
	args := []any{ctx, name, kind, body, opts}
	for _, s := range subresource {
		args = append(args, s)
	}
	return c.object("Patch", args...)
}

func (c typedClient) delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	_, err := c.call("Delete", ctx, name, opts)
	return err
}

func (c typedClient) deleteCollection(ctx context.Context, opts metav1.DeleteOptions, list metav1.ListOptions) error {
	_, err := c.call("DeleteCollection", ctx, opts, list)
	return err
}

// dynamicClients returns clients of documents without a Go type, in a format.
func dynamicClients(t *testing.T, s *server, format string) kindClients {
	t.Helper()
	config := dynamic.ConfigFor(s.config)
	config.ContentType, config.AcceptContentTypes = format, format
	config.GroupVersion, config.APIPath = nil, "/unused"
	client, err := rest.UnversionedRESTClientForConfigAndClient(config, s.http)
	require.NoError(t, err)
	set := dynamic.New(client)
	return func(_ *testing.T, gvr schema.GroupVersionResource, namespace string) kindClient {
		return dynamicClient{set.Resource(gvr).Namespace(namespace)}
	}
}

type dynamicClient struct{ dynamic.ResourceInterface }

func (c dynamicClient) create(ctx context.Context, doc m, opts metav1.CreateOptions) (runtime.Object, error) {
	return c.Create(ctx, &unstructured.Unstructured{Object: doc}, opts)
}

func (c dynamicClient) update(ctx context.Context, obj runtime.Object, subresource string) (runtime.Object, error) {
	if subresource == "" {
		return c.Update(ctx, obj.(*unstructured.Unstructured), metav1.UpdateOptions{})
	}
	return c.Update(ctx, obj.(*unstructured.Unstructured), metav1.UpdateOptions{}, subresource)
}

func (c dynamicClient) get(ctx context.Context, name string) (runtime.Object, error) {
	return c.Get(ctx, name, metav1.GetOptions{})
}

func (c dynamicClient) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	return c.List(ctx, opts)
}

func (c dynamicClient) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return c.Watch(ctx, opts)
}

func (c dynamicClient) patch(ctx context.Context, name string, kind types.PatchType, body []byte,
	opts metav1.PatchOptions, subresource ...string) (runtime.Object, error) {
	return c.Patch(ctx, name, kind, body, opts, subresource...)
}

func (c dynamicClient) delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return c.Delete(ctx, name, opts)
}

func (c dynamicClient) deleteCollection(ctx context.Context, opts metav1.DeleteOptions, list metav1.ListOptions) error {
	return c.DeleteCollection(ctx, opts, list)
}

// metadataClients returns clients that read metadata only, in a format. The methods that they do not have are
// implemented by others.
func metadataClients(t *testing.T, s *server, format string, others kindClients) kindClients {
	t.Helper()
	config := metadata.ConfigFor(s.config)
	config.ContentType, config.AcceptContentTypes = format, format
	set, err := metadata.NewForConfigAndClient(config, s.http)
	require.NoError(t, err)
	return func(t *testing.T, gvr schema.GroupVersionResource, namespace string) kindClient {
		return metadataClient{others(t, gvr, namespace), set.Resource(gvr).Namespace(namespace)}
	}
}

type metadataClient struct {
	kindClient
	metadata metadata.ResourceInterface
}

func (c metadataClient) update(ctx context.Context, obj runtime.Object, subresource string) (runtime.Object, error) {
	// An update needs more than the metadata.
	full, err := c.kindClient.get(ctx, nameOf(obj))
	if err != nil {
		return nil, err
	}
	accessor, _ := meta.Accessor(obj)
	fresh, _ := meta.Accessor(full)
	fresh.SetLabels(accessor.GetLabels())
	return c.kindClient.update(ctx, full, subresource)
}

func (c metadataClient) get(ctx context.Context, name string) (runtime.Object, error) {
	return c.metadata.Get(ctx, name, metav1.GetOptions{})
}

func (c metadataClient) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	return c.metadata.List(ctx, opts)
}

func (c metadataClient) watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return c.metadata.Watch(ctx, opts)
}

func (c metadataClient) patch(ctx context.Context, name string, kind types.PatchType, body []byte,
	opts metav1.PatchOptions, subresource ...string) (runtime.Object, error) {
	return c.metadata.Patch(ctx, name, kind, body, opts, subresource...)
}

func (c metadataClient) delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return c.metadata.Delete(ctx, name, opts)
}

func (c metadataClient) deleteCollection(ctx context.Context, opts metav1.DeleteOptions,
	list metav1.ListOptions) error {
	return c.metadata.DeleteCollection(ctx, opts, list)
}

func nameOf(obj runtime.Object) string {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return accessor.GetName()
}

// document returns an object as a document in JSON.
func document(t testing.TB, obj any) m {
	t.Helper()
	text, err := json.Marshal(obj)
	require.NoError(t, err)
	var doc m
	require.NoError(t, json.Unmarshal(text, &doc))
	return doc
}
