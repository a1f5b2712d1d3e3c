package servicelb_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cluster adds helpers for Services to Clocked.
type cluster struct{ *controllertest.Clocked }

// balanced creates a Service of type LoadBalancer.
func (c cluster) balanced(name string, edit func(*corev1.Service)) {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if edit != nil {
		edit(s)
	}
	_, err := c.Client.CoreV1().Services("default").Create(c.Context(), s, metav1.CreateOptions{})
	require.NoError(c, err)
}

func (c cluster) service(name string) *corev1.Service {
	s, err := c.Client.CoreV1().Services("default").Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	return s
}

func addressesOf(s *corev1.Service) string {
	var all []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		all = append(all, in.IP)
	}
	return strings.Join(all, " ")
}

// awaitAddress waits until a Service has these addresses; "" for none.
func (c cluster) awaitAddress(name, want string) {
	c.Helper()
	c.Reaches(fmt.Sprintf("service %s has %q", name, want), func() bool { return addressesOf(c.service(name)) == want })
}

func (c cluster) editService(name string, change func(*corev1.Service)) {
	c.Helper()
	controllertest.Edit(c.Cluster, c.Client.CoreV1().Services("default"), name, change)
}

func TestServiceLB_AssignsAndReleasesAddressesOfThePool(t *testing.T) {
	t.Parallel()
	settings := controllers.Settings{}
	settings.Service.LoadBalancerPool = []string{"192.0.2.10-192.0.2.11", "2001:db8::/127"}
	c := cluster{controllertest.NewClockedWith(t, settings, "service-lb-controller")}
	c.balanced("a", nil)
	c.awaitAddress("a", "192.0.2.10")
	require.Contains(t, c.service("a").Finalizers, "service.kubernetes.io/load-balancer-cleanup")
	require.Equal(t, corev1.LoadBalancerIPModeVIP, *c.service("a").Status.LoadBalancer.Ingress[0].IPMode)
	c.AwaitEvent("EnsuredLoadBalancer", "Ensured load balancer")
	c.balanced("b", func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("coxswain.dev/pool") })
	c.awaitAddress("b", "192.0.2.11")
	c.balanced("other", func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("example.com/metal") })
	c.balanced("waits", nil)
	c.AwaitEvent("SyncLoadBalancerFailed",
		"Error syncing load balancer: failed to ensure load balancer: no address is free in the pool: IPv4")
	require.Empty(t, addressesOf(c.service("other")))
	require.NotContains(t, c.service("other").Finalizers, "service.kubernetes.io/load-balancer-cleanup")

	// After a restart, the controllers know only the addresses in the status of the Services.
	c.Restart()
	// A Service that is deleted releases its address for the pending one.
	require.NoError(t, c.Client.CoreV1().Services("default").Delete(c.Context(), "a", metav1.DeleteOptions{}))
	c.awaitAddress("waits", "192.0.2.10")
	c.Reaches("a is gone", func() bool {
		_, err := c.Client.CoreV1().Services("default").Get(c.Context(), "a", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	// So does a Service whose type changes.
	c.editService("b", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	c.awaitAddress("b", "") // the server clears it when the type changes, before the controller sees the change
	c.Reaches("b loses its finalizer", func() bool {
		return !slices.Contains(c.service("b").Finalizers, "service.kubernetes.io/load-balancer-cleanup")
	})
	c.balanced("asks", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.10" })
	c.AwaitEvent("SyncLoadBalancerFailed", "requested address 192.0.2.10 is in use")
	c.editService("asks", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.11" })
	c.awaitAddress("asks", "192.0.2.11")
}

func TestServiceLB_AssignsNoAddressTwice(t *testing.T) {
	t.Parallel()
	settings := controllers.Settings{}
	settings.Service.LoadBalancerPool = []string{"192.0.2.0/27"}
	c := cluster{controllertest.NewClockedWith(t, settings, "service-lb-controller")}
	for i := range 20 {
		c.balanced(fmt.Sprintf("s%d", i), nil)
		if i == 10 {
			c.Restart()
		}
	}
	c.Reaches("all have an address", func() bool {
		list, err := c.Client.CoreV1().Services("default").List(c.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		seen := map[string]bool{}
		for i := range list.Items {
			if a := addressesOf(&list.Items[i]); a != "" {
				require.False(t, seen[a], "%s is assigned twice", a)
				seen[a] = true
			}
		}
		return len(seen) == 20
	})
}
