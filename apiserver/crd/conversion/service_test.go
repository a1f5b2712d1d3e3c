package conversion_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
)

// network maps the addresses of pods to the servers of a test.
type network map[string]*hook

func (n network) dial(ctx context.Context, protocol, address string) (net.Conn, error) {
	if h := n[address]; h != nil {
		address = h.Listener.Addr().String()
	}
	return (&net.Dialer{}).DialContext(ctx, protocol, address)
}

// A webhook at a Service is called at one of its ready endpoints, with the Service's name.
func TestServiceReference_ResolvesToAnEndpoint(t *testing.T) {
	t.Parallel()
	pods := network{}
	c := serve(t, apiserver.Options{Kubelet: proxy.KubeletOptions{Dial: pods.dial}})
	ctx := t.Context()
	pods["10.1.0.5:9443"] = c.hook
	core, groups := c.Client(t).CoreV1(), c.Client(t).DiscoveryV1()
	c.create("v2", "a", object{"address": "h:1"})
	c.redefine(func(crd *unstructured.Unstructured) {
		require.NoError(t, unstructured.SetNestedMap(crd.Object, object{"caBundle": encoded(c.hook.ca.PEM()),
			"service": object{"namespace": "default", "name": "hook", "port": int64(8443), "path": "/convert"}},
			"spec", "conversion", "webhook", "clientConfig"))
	})
	_, err := c.in(v1).Get(ctx, "a", metav1.GetOptions{})
	require.ErrorContains(t, err, `services "hook" not found`)

	_, err = core.Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hook"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 8443}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "hook-1",
		Labels: map[string]string{discoveryv1.LabelServiceName: "hook"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("https"),
			Port: new(int32(9443))}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.5"},
			Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}}}
	slice, err = groups.EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { // memory learns about slices asynchronously
		_, err = c.in(v1).Get(ctx, "a", metav1.GetOptions{})
		return err != nil && err.Error() == `conversion webhook for example.com/v2, Kind=Endpoint failed: no endpoints `+
			`available for service "hook"`
	}, patience, tick)
	require.Empty(t, c.hook.asked())

	slice.Endpoints[0].Conditions.Ready = new(true)
	_, err = groups.EndpointSlices("default").Update(ctx, slice, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err = c.in(v1).Get(ctx, "a", metav1.GetOptions{})
		return err == nil
	}, patience, tick)
	require.Equal(t, object{"host": "h", "port": int64(1)}, c.get(v1, "a")["spec"])
	require.NotEmpty(t, c.hook.asked())
}

// A changed caBundle takes effect at once: existing connections and converted objects are not reused.
func TestCABundle_TakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{})
	c.create("v2", "a", object{"address": "h:1"})
	require.Equal(t, object{"host": "h", "port": int64(1)}, c.get(v1, "a")["spec"])
	other, err := pki.NewCA()
	require.NoError(t, err)
	setCABundle := func(bundle []byte) {
		c.redefine(func(crd *unstructured.Unstructured) {
			require.NoError(t, unstructured.SetNestedField(crd.Object, encoded(bundle), "spec", "conversion", "webhook",
				"clientConfig", "caBundle"))
		})
	}
	setCABundle(other.PEM())
	_, err = c.in(v1).Get(t.Context(), "a", metav1.GetOptions{})
	require.ErrorContains(t, err, "certificate signed by unknown authority")
	setCABundle(append(other.PEM(), c.hook.ca.PEM()...))
	require.Equal(t, object{"host": "h", "port": int64(1)}, c.get(v1, "a")["spec"])
}

// The server sends the first version in the definition's list that it supports.
func TestReviewVersions(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{}, func(crd *unstructured.Unstructured) {
		require.NoError(t, unstructured.SetNestedStringSlice(crd.Object, []string{"v7", "v1beta1", "v1"}, "spec",
			"conversion", "webhook", "conversionReviewVersions"))
	})
	c.create("v2", "a", object{"address": "h:1"})
	c.hook.replies(func(doc object) { // optional in v1beta1
		delete(doc["response"].(object), "uid")
		delete(doc, "kind")
	})
	require.Equal(t, object{"host": "h", "port": int64(1)}, c.get(v1, "a")["spec"])
	reviews := c.hook.asked()
	require.Len(t, reviews, 1)
	require.Equal(t, "apiextensions.k8s.io/v1beta1", reviews[0].APIVersion)
}

// Other kinds, namespaces and the metadata for the garbage collector do not depend on a webhook.
func TestOthers_AreNotAffected(t *testing.T) {
	t.Parallel()
	c := serve(t, apiserver.Options{}, func(crd *unstructured.Unstructured) {
		require.NoError(t, unstructured.SetNestedMap(crd.Object, object{"url": "https://127.0.0.1:1"}, "spec", "conversion",
			"webhook", "clientConfig"))
	})
	ctx := t.Context()
	c.create("v2", "a", object{"address": "h:1"})
	_, err := c.in(v1).List(ctx, metav1.ListOptions{})
	require.ErrorContains(t, err, `conversion webhook for example.com/v2, Kind=Endpoint failed: Post `+
		`"https://127.0.0.1:1": dial tcp 127.0.0.1:1: connect: connection refused`)
	_, err = c.in(v1).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=other"})
	require.NoError(t, err, "nothing to convert")
	configMaps := c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")
	require.NoError(t, erred(configMaps.Create(ctx, &unstructured.Unstructured{Object: object{"apiVersion": "v1",
		"kind": "ConfigMap", "metadata": object{"name": "a"}}}, metav1.CreateOptions{})))
	require.NoError(t, c.in(v2).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}
