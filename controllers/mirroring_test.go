package controllers_test

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
)

// shown are the addresses in a Service's slices with the names of their ports, those that are not ready with a minus.
func (c *clocked) shown(service string) string {
	var all []string
	for _, s := range c.slices(service) {
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

func (c *clocked) awaitShown(service, want string) {
	c.Helper()
	c.reaches(fmt.Sprintf("slices of %s show %q", service, want), func() bool { return c.shown(service) == want })
}

func TestEndpointSliceMirroring_ShowsWhatUsersWrite(t *testing.T) {
	t.Parallel()
	c := newSettled(t, controllers.Settings{}, "endpointslice-mirroring-controller", "garbagecollector")
	_, err := c.client.CoreV1().Services("default").Create(c.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	endpoints := c.client.CoreV1().Endpoints("default")
	e, err := endpoints.Create(c.ctx, &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Labels: map[string]string{"team": "a"},
			Annotations: map[string]string{"note": "n", "coxswain.dev/ttl": "1h"}},
		Subsets: []corev1.EndpointSubset{
			{Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}, {IP: "192.0.2.2", Hostname: "two"}},
				NotReadyAddresses: []corev1.EndpointAddress{{IP: "192.0.2.3"}}, Ports: []corev1.EndpointPort{{Name: "sql", Port: 5432}}},
			{Addresses: []corev1.EndpointAddress{{IP: "192.0.2.4"}, {IP: "2001:db8::1"}}, Ports: []corev1.EndpointPort{{Name: "sql", Port: 6000}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.awaitShown("db", "-192.0.2.3/sql:5432 192.0.2.1/sql:5432 192.0.2.2/sql:5432 192.0.2.4/sql:6000 2001:db8::1/sql:6000")
	for _, s := range c.slices("db") {
		require.Equal(t, "endpointslicemirroring-controller.k8s.io", s.Labels[discoveryv1.LabelManagedBy])
		require.Equal(t, "a", s.Labels["team"])
		require.Equal(t, map[string]string{"note": "n"}, s.Annotations)
		require.True(t, metav1.IsControlledBy(&s, e))
		require.Equal(t, strings.Contains(s.Endpoints[0].Addresses[0], ":"), s.AddressType == discoveryv1.AddressTypeIPv6)
	}

	// One address more writes one slice.
	versions := func() map[string]string {
		all := map[string]string{}
		for _, s := range c.slices("db") {
			all[s.Name] = s.ResourceVersion
		}
		return all
	}
	before := versions()
	e.Subsets[1].Addresses = append(e.Subsets[1].Addresses, corev1.EndpointAddress{IP: "192.0.2.5"})
	e, err = endpoints.Update(c.ctx, e, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.awaitShown("db", "-192.0.2.3/sql:5432 192.0.2.1/sql:5432 192.0.2.2/sql:5432 192.0.2.4/sql:6000 192.0.2.5/sql:6000 2001:db8::1/sql:6000")
	after := versions()
	require.Len(t, after, len(before))
	maps.DeleteFunc(after, func(name, version string) bool { return before[name] == version })
	require.Len(t, after, 1)

	// What somebody takes away comes back; what is not to be mirrored any more goes.
	require.NoError(t, c.client.DiscoveryV1().EndpointSlices("default").DeleteCollection(c.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	c.awaitShown("db", "-192.0.2.3/sql:5432 192.0.2.1/sql:5432 192.0.2.2/sql:5432 192.0.2.4/sql:6000 192.0.2.5/sql:6000 2001:db8::1/sql:6000")
	e.Labels[discoveryv1.LabelSkipMirror] = "true"
	e, err = endpoints.Update(c.ctx, e, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.awaitShown("db", "")
	delete(e.Labels, discoveryv1.LabelSkipMirror)
	e.Subsets = e.Subsets[:1]
	_, err = endpoints.Update(c.ctx, e, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.awaitShown("db", "-192.0.2.3/sql:5432 192.0.2.1/sql:5432 192.0.2.2/sql:5432")

	// A Service that is given a selector tells of its pods itself.
	c.editService("db", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "db"} })
	c.awaitShown("db", "")
	c.editService("db", func(s *corev1.Service) { s.Spec.Selector = nil })
	c.awaitShown("db", "-192.0.2.3/sql:5432 192.0.2.1/sql:5432 192.0.2.2/sql:5432")
	require.NoError(t, endpoints.Delete(c.ctx, "db", metav1.DeleteOptions{}))
	c.reaches("nothing is left", func() bool { return len(c.slices("db")) == 0 })
	_, err = endpoints.Get(c.ctx, "db", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

func TestEndpointSliceMirroring_HasALimitForEachSubset(t *testing.T) {
	t.Parallel()
	settings := controllers.Settings{}
	settings.Endpoints.MirroredMaxPerSubset = 2
	c := newSettled(t, settings, "endpointslice-mirroring-controller")
	_, err := c.client.CoreV1().Services("default").Create(c.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: corev1.ServiceSpec{ClusterIP: "None"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.client.CoreV1().Endpoints("default").Create(c.ctx, &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Subsets: []corev1.EndpointSubset{{
			Addresses:         []corev1.EndpointAddress{{IP: "192.0.2.1"}},
			NotReadyAddresses: []corev1.EndpointAddress{{IP: "192.0.2.2"}, {IP: "192.0.2.3"}, {IP: "192.0.2.4"}},
		}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.awaitShown("db", "-192.0.2.2/ 192.0.2.1/")
	c.awaitEvent("TooManyAddressesToMirror", "A max of 2 addresses can be mirrored to EndpointSlices per Endpoints subset. 2 addresses were skipped")
}

func TestEndpointSlice_HoldsAsManyEndpointsAsItMay(t *testing.T) {
	t.Parallel()
	settings := controllers.Settings{}
	settings.Endpoints.MaxPerSlice = 3
	c := newSettled(t, settings, "endpointslice", "endpointslice-mirroring-controller")
	c.createNodeNamed("n", nil)
	_, err := c.client.CoreV1().Services("default").Create(c.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for i := range 7 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i), Labels: map[string]string{"app": "web"}}}
		pod.Spec.NodeName, pod.Spec.Containers = "n", []corev1.Container{{Name: "c", Image: "i"}}
		pod, err := c.client.CoreV1().Pods("default").Create(c.ctx, pod, metav1.CreateOptions{})
		require.NoError(t, err)
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, fmt.Sprintf("10.0.0.%d", i+1), nil
		_, err = c.client.CoreV1().Pods("default").UpdateStatus(c.ctx, pod, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	c.reaches("seven in slices of three", func() bool {
		total := 0
		for _, s := range c.slices("web") {
			require.LessOrEqual(t, len(s.Endpoints), 3)
			total += len(s.Endpoints)
		}
		return total == 7
	})
}
