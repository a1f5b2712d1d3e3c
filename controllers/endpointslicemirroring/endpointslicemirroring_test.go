package endpointslicemirroring_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cluster adds assertions about slices to a controllertest.Cluster.
type cluster struct{ *controllertest.Clocked }

// shown returns the addresses in a Service's slices with the names of their ports; unready addresses have a
// minus.
func (c cluster) shown(service string) string {
	var all []string
	for _, s := range c.Slices(service) {
		var ports []string
		for _, p := range s.Ports {
			ports = append(ports, fmt.Sprintf("%s:%d", *p.Name, *p.Port))
		}
		for _, e := range s.Endpoints {
			sign := ""
			if !*e.Conditions.Ready {
				sign = "-"
			}
			all = append(all, sign+e.Addresses[0]+"/"+strings.Join(ports, ","))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (c cluster) awaitShown(service, want string) {
	c.Helper()
	c.Reaches(fmt.Sprintf("slices of %s show %q", service, want), func() bool { return c.shown(service) == want })
}

func TestEndpointSliceMirroring_MirrorsEndpointsOfUsers(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewClockedWith(t, controllers.Settings{}, "endpointslice-mirroring-controller", "garbagecollector")}
	_, err := c.Client.CoreV1().Services("default").Create(c.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	endpoints, services := c.Client.CoreV1().Endpoints("default"), c.Client.CoreV1().Services("default")
	e, err := endpoints.Create(c.Context(), &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Labels: map[string]string{"team": "a"},
			Annotations: map[string]string{"note": "n", "coxswain.dev/ttl": "1h"}},
		Subsets: []corev1.EndpointSubset{
			{Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}, {IP: "192.0.2.2", Hostname: "two"}},
				NotReadyAddresses: []corev1.EndpointAddress{{IP: "192.0.2.3"}},
				Ports:             []corev1.EndpointPort{{Name: "sql", Port: 5432}}},
			{Addresses: []corev1.EndpointAddress{{IP: "192.0.2.4"}, {IP: "2001:db8::1"}},
				Ports: []corev1.EndpointPort{{Name: "sql", Port: 6000}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.awaitShown("db",
		"-192.0.2.3/sql:5432 192.0.2.1/sql:5432 192.0.2.2/sql:5432 192.0.2.4/sql:6000 2001:db8::1/sql:6000")
	const prefix = "endpoint_slice_mirroring_controller_"
	c.AwaitMetric(5, prefix+"endpoints_desired")
	c.AwaitMetric(3, prefix+"num_endpoint_slices")
	c.AwaitMetric(3, prefix+"desired_endpoint_slices")
	c.AwaitMetric(3, prefix+"changes", "operation", "create")
	require.EqualValues(t, 5, seriestest.Sum(t, c.Metrics, prefix+"endpoints_added_per_sync"))
	for _, histogram := range []string{"updated_per_sync", "removed_per_sync", "sync_duration"} {
		require.NotZero(t, seriestest.Value(t, c.Metrics, prefix+"endpoints_"+histogram), histogram)
	}
	require.NotZero(t, seriestest.Value(t, c.Metrics, prefix+"addresses_skipped_per_sync"))
	for _, s := range c.Slices("db") {
		require.Equal(t, "endpointslicemirroring-controller.k8s.io", s.Labels[discoveryv1.LabelManagedBy])
		require.Equal(t, "a", s.Labels["team"])
		require.Equal(t, map[string]string{"note": "n"}, s.Annotations)
		require.True(t, metav1.IsControlledBy(&s, e))
		require.Equal(t, strings.Contains(s.Endpoints[0].Addresses[0], ":"),
			s.AddressType == discoveryv1.AddressTypeIPv6)
	}

	// Another address writes one slice.
	versions := func() map[string]string {
		all := map[string]string{}
		for _, s := range c.Slices("db") {
			all[s.Name] = s.ResourceVersion
		}
		return all
	}
	before := versions()
	e.Subsets[1].Addresses = append(e.Subsets[1].Addresses, corev1.EndpointAddress{IP: "192.0.2.5"})
	e, err = endpoints.Update(c.Context(), e, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.awaitShown("db", "-192.0.2.3/sql:5432 192.0.2.1/sql:5432 192.0.2.2/sql:5432 192.0.2.4/sql:6000 "+
		"192.0.2.5/sql:6000 2001:db8::1/sql:6000")
	after := versions()
	require.Len(t, after, len(before))
	maps.DeleteFunc(after, func(name, version string) bool { return before[name] == version })
	require.Len(t, after, 1)

	// A deleted slice is created again; a slice of Endpoints that must no longer be mirrored is deleted.
	require.NoError(t, c.Client.DiscoveryV1().EndpointSlices("default").DeleteCollection(c.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{}))
	c.awaitShown("db", "-192.0.2.3/sql:5432 192.0.2.1/sql:5432 192.0.2.2/sql:5432 192.0.2.4/sql:6000 "+
		"192.0.2.5/sql:6000 2001:db8::1/sql:6000")
	e.Labels[discoveryv1.LabelSkipMirror] = "true"
	e, err = endpoints.Update(c.Context(), e, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.awaitShown("db", "")
	delete(e.Labels, discoveryv1.LabelSkipMirror)
	e.Subsets = e.Subsets[:1]
	_, err = endpoints.Update(c.Context(), e, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.awaitShown("db", "-192.0.2.3/sql:5432 192.0.2.1/sql:5432 192.0.2.2/sql:5432")

	// Once a Service has a selector, its slices come from its pods.
	controllertest.Edit(c.Cluster, services, "db", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "db"} })
	c.awaitShown("db", "")
	controllertest.Edit(c.Cluster, services, "db", func(s *corev1.Service) { s.Spec.Selector = nil })
	c.awaitShown("db", "-192.0.2.3/sql:5432 192.0.2.1/sql:5432 192.0.2.2/sql:5432")
	require.NoError(t, endpoints.Delete(c.Context(), "db", metav1.DeleteOptions{}))
	c.Reaches("nothing is left", func() bool { return len(c.Slices("db")) == 0 })
	_, err = endpoints.Get(c.Context(), "db", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

func TestEndpointSliceMirroring_LimitsAddressesOfEachSubset(t *testing.T) {
	t.Parallel()
	settings := controllers.Settings{}
	settings.Endpoints.MirroredMaxPerSubset = 2
	c := cluster{controllertest.NewClockedWith(t, settings, "endpointslice-mirroring-controller")}
	_, err := c.Client.CoreV1().Services("default").Create(c.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: corev1.ServiceSpec{ClusterIP: "None"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.Client.CoreV1().Endpoints("default").Create(c.Context(), &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Subsets: []corev1.EndpointSubset{{
			Addresses:         []corev1.EndpointAddress{{IP: "192.0.2.1"}},
			NotReadyAddresses: []corev1.EndpointAddress{{IP: "192.0.2.2"}, {IP: "192.0.2.3"}, {IP: "192.0.2.4"}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.awaitShown("db", "-192.0.2.2/ 192.0.2.1/")
	c.AwaitEvent("TooManyAddressesToMirror",
		"A max of 2 addresses can be mirrored to EndpointSlices per Endpoints subset. 2 addresses were skipped")
}
