//go:build e2e

package conformance

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// CustomResourceFieldSelectors MUST list and watch custom resources matching the field selector
//
// The webhook listens on loopback, so the cluster under test must run on this machine.
func TestFieldSelectors_InTwoVersions(t *testing.T) {
	t.Parallel()
	c := connect(t)
	crd := c.define(hostsAndPorts(t))
	v1, v2 := c.objects(crd, "v1"), c.objects(crd, "v2")
	watches := map[string]*selected{}
	for selector, objects := range map[string]dynamic.ResourceInterface{"host=host1": v2, "host=host1,port=80": v2,
		"hostPort=host1:80": v1} {
		watches[selector] = c.watch(objects, selector)
	}
	informers := map[string]*selected{}
	for _, selector := range []string{"host=host1", "host=host1,port=80"} {
		informers[selector] = c.inform(crd, selector)
	}
	for name, fields := range map[string]map[string]any{"a": {"host": "host1", "port": "80"},
		"b": {"host": "host1", "port": "8080"}, "c": {"host": "host2"}} {
		_, err := v2.Create(c.ctx, object(crd, "v2", name, fields), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	lists := func(objects dynamic.ResourceInterface, selector string, want ...string) {
		t.Helper()
		list, err := objects.List(c.ctx, metav1.ListOptions{FieldSelector: selector})
		require.NoError(t, err)
		var names []string
		for i := range list.Items {
			names = append(names, list.Items[i].GetName())
		}
		require.ElementsMatch(t, want, names, selector)
	}
	lists(v2, "host=host1", "a", "b")
	lists(v2, "host=host1,port=80", "a")
	lists(v1, "hostPort=host1:80", "a")
	lists(v1, "hostPort=host1:8080", "b")
	watches["host=host1"].sees(t, "+a", "+b")
	watches["host=host1,port=80"].sees(t, "+a")
	watches["hostPort=host1:80"].sees(t, "+a")
	informers["host=host1"].sees(t, "+a", "+b")
	informers["host=host1,port=80"].sees(t, "+a")

	require.NoError(t, v2.DeleteCollection(c.ctx, metav1.DeleteOptions{},
		metav1.ListOptions{FieldSelector: "host=host1,port=80"}))
	b, err := v2.Get(c.ctx, "b", metav1.GetOptions{})
	require.NoError(t, err)
	b.Object["host"] = "host2"
	_, err = v2.Update(c.ctx, b, metav1.UpdateOptions{})
	require.NoError(t, err)
	lists(v2, "host=host1")
	lists(v2, "host=host2", "b", "c")
	watches["host=host1"].sees(t, "+a", "+b", "-a", "-b")
	watches["host=host1,port=80"].sees(t, "+a", "-a")
	watches["hostPort=host1:80"].sees(t, "+a", "-a")
	informers["host=host1"].sees(t, "+a", "+b", "-a", "-b")
	informers["host=host1,port=80"].sees(t, "+a", "-a")
}

// selected is the record of a watch or an informer: names after + or -.
type selected struct {
	events chan string
	seen   []string
}

// sees waits until exactly these have been seen, in any order.
func (s *selected) sees(t *testing.T, want ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for {
			select {
			case event := <-s.events:
				s.seen = append(s.seen, event)
				continue
			default:
			}
			slices.Sort(s.seen)
			slices.Sort(want)
			return slices.Equal(want, s.seen)
		}
	}, patience, tick, "%v", want)
}

func (c *cluster) watch(objects dynamic.ResourceInterface, selector string) *selected {
	w, err := objects.Watch(c.ctx, metav1.ListOptions{FieldSelector: selector})
	require.NoError(c.t, err)
	s := &selected{events: make(chan string, 100)}
	go func() {
		for event := range w.ResultChan() {
			if obj, ok := event.Object.(*unstructured.Unstructured); ok {
				s.note(event.Type, obj)
			}
		}
	}()
	c.t.Cleanup(w.Stop)
	return s
}

func (s *selected) note(kind watch.EventType, obj *unstructured.Unstructured) {
	switch kind {
	case watch.Added:
		s.events <- "+" + obj.GetName()
	case watch.Deleted:
		s.events <- "-" + obj.GetName()
	}
}

func (c *cluster) inform(crd *apiextensionsv1.CustomResourceDefinition, selector string) *selected {
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(c.dynamic, 0, c.namespace,
		func(o *metav1.ListOptions) { o.FieldSelector = selector })
	s := &selected{events: make(chan string, 100)}
	informer := factory.ForResource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: "v2",
		Resource: crd.Spec.Names.Plural})
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { s.note(watch.Added, obj.(*unstructured.Unstructured)) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			s.note(watch.Deleted, obj.(*unstructured.Unstructured))
		},
	})
	require.NoError(c.t, err)
	factory.Start(c.ctx.Done())
	for _, synced := range factory.WaitForCacheSync(c.ctx.Done()) {
		require.True(c.t, synced)
	}
	return s
}

// hostsAndPorts defines a kind that has a host and a port in v2, and both in one field in v1.
func hostsAndPorts(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	v1 := version("v1", `{"type":"object","properties":{"hostPort":{"type":"string"}}}`)
	v1.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".hostPort"}}
	v2 := version("v2", `{"type":"object","properties":{"host":{"type":"string"},"port":{"type":"string"}}}`)
	v2.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".host"}, {JSONPath: ".port"}}
	crd := definition("Selectable", v1, v2)
	webhook := httptest.NewTLSServer(http.HandlerFunc(convert))
	t.Cleanup(webhook.Close)
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{ConversionReviewVersions: []string{"v1"},
			ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &webhook.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: webhook.Certificate().Raw})}}}
	return crd
}

// convert answers a ConversionReview.
func convert(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID,
		Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, from := range review.Request.Objects {
		var u unstructured.Unstructured
		if err := u.UnmarshalJSON(from.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		split(&u, review.Request.DesiredAPIVersion)
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: &u})
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // the server reports a missing answer
}

// split converts an object to a version.
func split(u *unstructured.Unstructured, to string) {
	text := func(field string) string {
		value, _ := u.Object[field].(string)
		delete(u.Object, field)
		return value
	}
	switch {
	case u.GetAPIVersion() == to:
	case strings.HasSuffix(to, "/v1"):
		u.Object["hostPort"] = strings.TrimSuffix(text("host")+":"+text("port"), ":")
	default:
		host, port, found := strings.Cut(text("hostPort"), ":")
		u.Object["host"] = host
		if found {
			u.Object["port"] = port
		}
	}
	u.SetAPIVersion(to)
}
