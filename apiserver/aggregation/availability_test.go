package aggregation_test

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// The conditions describe the missing part, in kube-aggregator's order and with its messages.
func TestAvailability_FollowsServiceAndEndpoints(t *testing.T) {
	t.Parallel()
	c := start(t, apiserver.Options{})
	ctx := t.Context()
	const name = "v1.wardle.example.com"
	e := newExtension(t, true, "wardle.default.svc")
	c.pods.lead("10.1.0.5:8443", e.Listener.Addr().String())
	c.register("v1", "wardle.example.com", "wardle", e.ca)
	c.becomes(name, `False ServiceNotFound service/wardle in "default" is not present`)
	require.Eventually(t, func() bool { return c.Aggregated("/apis/wardle.example.com/v1") != nil }, patience, tick)
	got := c.get("/apis/wardle.example.com/v1/flunders")
	require.Equal(t, http.StatusServiceUnavailable, got.code)
	require.Equal(t, "service unavailable\n", got.body)
	require.Contains(t, c.get("/metrics").body, `aggregator_unavailable_apiservice{name="v1.wardle.example.com"} 1`)

	service, err := c.core.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "wardle"}, Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Name: "https", Port: 444}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.becomes(name, `False ServicePortError service/wardle in "default" is not listening on port 443`)
	service.Spec.Ports[0].Port = 443
	_, err = c.core.CoreV1().Services("default").Update(ctx, service, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.becomes(name, `False EndpointsNotFound cannot find endpointslices for service/wardle in "default"`)
	slices := c.core.DiscoveryV1().EndpointSlices("default")
	slice, err := slices.Create(ctx, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "wardle-1",
		Labels: map[string]string{discoveryv1.LabelServiceName: "wardle"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(8443))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.5"},
			Conditions: discoveryv1.EndpointConditions{Ready: new(false)}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.becomes(name, `False MissingEndpoints endpointslices for service/wardle in "default" have no addresses with port `+
		`name "https"`)
	e.answers(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) })
	slice.Endpoints[0].Conditions.Ready = new(true)
	slice, err = slices.Update(ctx, slice, metav1.UpdateOptions{})
	require.NoError(t, err)
	const target = "https://10.1.0.5:8443/apis/wardle.example.com/v1"
	c.becomes(name,
		"False FailedDiscoveryCheck failing or missing response from "+target+": bad status from "+target+": 403")
	e.answers(nil)
	c.becomes(name, passed) // a failed check is repeated soon
	require.Eventually(t, func() bool {
		return c.get("/apis/wardle.example.com/v1/flunders").code == http.StatusOK
	}, patience, tick)
	require.Contains(t, c.get("/metrics").body, `aggregator_unavailable_apiservice{name="v1.wardle.example.com"} 0`)

	require.NoError(t, slices.Delete(ctx, slice.Name, metav1.DeleteOptions{}))
	c.becomes(name, `False EndpointsNotFound cannot find endpointslices for service/wardle in "default"`)
	require.Contains(t, c.get("/metrics").body,
		`aggregator_unavailable_apiservice_total{name="v1.wardle.example.com",reason="EndpointsNotFound"} 1`)
	require.NoError(t, c.registration.ApiregistrationV1().APIServices().Delete(ctx, name, metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return c.Aggregated("/apis/wardle.example.com/v1") == nil }, patience, tick)
	require.Eventually(t, func() bool {
		return !strings.Contains(c.get("/metrics").body, `aggregator_unavailable_apiservice{name="v1.wardle.example.com"}`)
	}, patience, tick)
}

// The server must present a certificate for the service's name, signed by an authority in caBundle.
func TestAvailability_VerifiesTheServer(t *testing.T) {
	t.Parallel()
	c := start(t, apiserver.Options{})
	e := newExtension(t, true, "other.default.svc")
	c.service("wardle", "10.1.0.5", e)
	c.register("v1", "wardle.example.com", "wardle", e.ca)
	const name = "v1.wardle.example.com"
	require.Eventually(t, func() bool {
		return strings.Contains(c.condition(name), "certificate is valid for other.default.svc, not wardle.default.svc")
	}, patience, tick)
	patch := func(spec string) {
		_, err := c.registration.ApiregistrationV1().APIServices().Patch(t.Context(), name, types.MergePatchType,
			[]byte(`{"spec":`+spec+`}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	patch(`{"caBundle":"YWJj"}`)
	require.Eventually(t, func() bool { return strings.Contains(c.condition(name), "unable to load root certificates") }, patience,
		tick)
	patch(`{"caBundle":null,"insecureSkipTLSVerify":true}`)
	c.becomes(name, passed)
}

// The extension refuses this server without the front proxy's certificate.
func TestAvailability_NeedsTheProxyCertificate(t *testing.T) {
	t.Parallel()
	c := start(t, apiserver.Options{ProxyClient: func() (*tls.Certificate, error) { return &tls.Certificate{}, nil }})
	e := newExtension(t, true, "wardle.default.svc")
	c.service("wardle", "10.1.0.5", e)
	c.register("v1", "wardle.example.com", "wardle", e.ca)
	require.Eventually(t, func() bool {
		return strings.Contains(c.condition("v1.wardle.example.com"), "FailedDiscoveryCheck") &&
			strings.Contains(c.condition("v1.wardle.example.com"), "certificate required")
	}, patience, tick)
}

// Two servers that share a store do not undo each other's writes.
func TestTwoServers_DoNotUndoEachOther(t *testing.T) {
	t.Parallel()
	backend := servertest.Backend(t)
	one := start(t, apiserver.Options{Store: servertest.Store(t, backend, storage.Options{})})
	two := start(t, apiserver.Options{Store: servertest.Store(t, backend, storage.Options{})})
	e := newExtension(t, true, "wardle.default.svc")
	one.service("wardle", "10.1.0.5", e)
	two.pods.lead("10.1.0.5:8443", e.Listener.Addr().String())
	one.register("v1", "wardle.example.com", "wardle", e.ca)
	_, err := one.definitions().ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), widgets("example.com"),
		metav1.CreateOptions{})
	require.NoError(t, err)
	for _, c := range []*cluster{one, two} {
		c.becomes("v1.wardle.example.com", passed)
		c.becomes("v1.example.com", local)
		c.becomes("v1.apps", local)
		c.routed("/apis/wardle.example.com/v1")
		require.Equal(t, http.StatusOK, c.get("/apis/wardle.example.com/v1/flunders").code)
	}
	services := one.registration.ApiregistrationV1().APIServices()
	before, err := services.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	// Both servers look at all APIServices now: they have done so once the APIService of the new group exists.
	_, err = two.definitions().ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), widgets("marker.com"),
		metav1.CreateOptions{})
	require.NoError(t, err)
	one.becomes("v1.marker.com", local)
	two.becomes("v1.marker.com", local)
	after, err := services.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	versions := map[string]string{}
	for _, s := range after.Items {
		versions[s.Name] = s.ResourceVersion
	}
	for _, s := range before.Items {
		require.Equal(t, s.ResourceVersion, versions[s.Name], s.Name)
	}
}
