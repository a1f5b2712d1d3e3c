package controllers_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/testenv"
)

// newSettled is a control plane of ours whose named controllers have these settings.
func newSettled(t testing.TB, settings controllers.Settings, names ...string) *clocked {
	config := testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0), testenv.WithoutScheduler())
	c := &clocked{
		cluster:   &cluster{TB: t, config: config, client: kubernetes.NewForConfigOrDie(config), ctx: t.Context()},
		FakeClock: clocktesting.NewFakeClock(metav1.Now().Time), names: names,
	}
	c.settings = settings
	c.restart()
	return c
}

func (c *clocked) balanced(name string, edit func(*corev1.Service)) {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if edit != nil {
		edit(s)
	}
	_, err := c.client.CoreV1().Services("default").Create(c.ctx, s, metav1.CreateOptions{})
	require.NoError(c, err)
}

func (c *clocked) service(name string) *corev1.Service {
	s, err := c.client.CoreV1().Services("default").Get(c.ctx, name, metav1.GetOptions{})
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
func (c *clocked) awaitAddress(name, want string) {
	c.Helper()
	c.reaches(fmt.Sprintf("service %s has %q", name, want), func() bool { return addressesOf(c.service(name)) == want })
}

func (c *clocked) editService(name string, change func(*corev1.Service)) {
	c.reaches("edit "+name, func() bool {
		s := c.service(name)
		change(s)
		_, err := c.client.CoreV1().Services("default").Update(c.ctx, s, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			require.NoError(c, err)
		}
		return err == nil
	})
}

func TestServiceLB_AddressesComeFromThePoolAndGoBack(t *testing.T) {
	t.Parallel()
	settings := controllers.Settings{}
	settings.Service.LoadBalancerPool = []string{"192.0.2.10-192.0.2.11", "2001:db8::/127"}
	c := newSettled(t, settings, "service-lb-controller")
	c.balanced("a", nil)
	c.awaitAddress("a", "192.0.2.10")
	require.Contains(t, c.service("a").Finalizers, "service.kubernetes.io/load-balancer-cleanup")
	require.Equal(t, corev1.LoadBalancerIPModeVIP, *c.service("a").Status.LoadBalancer.Ingress[0].IPMode)
	c.awaitEvent("EnsuredLoadBalancer", "Ensured load balancer")
	c.balanced("b", func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("coxswain.dev/pool") })
	c.awaitAddress("b", "192.0.2.11")
	c.balanced("other", func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("example.com/metal") })
	c.balanced("waits", nil)
	c.awaitEvent("SyncLoadBalancerFailed", "Error syncing load balancer: failed to ensure load balancer: no address is free in the pool: IPv4")
	require.Empty(t, addressesOf(c.service("other")))
	require.NotContains(t, c.service("other").Finalizers, "service.kubernetes.io/load-balancer-cleanup")

	// Others know nothing of what these gave out but what the Services say.
	c.restart()
	// A Service that is deleted frees its address for the one that waits.
	require.NoError(t, c.client.CoreV1().Services("default").Delete(c.ctx, "a", metav1.DeleteOptions{}))
	c.awaitAddress("waits", "192.0.2.10")
	c.reaches("a is gone", func() bool {
		_, err := c.client.CoreV1().Services("default").Get(c.ctx, "a", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	// So does one that ceases to be of the type.
	c.editService("b", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	c.awaitAddress("b", "")
	require.NotContains(t, c.service("b").Finalizers, "service.kubernetes.io/load-balancer-cleanup")
	c.balanced("asks", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.10" })
	c.awaitEvent("SyncLoadBalancerFailed", "requested address 192.0.2.10 is in use")
	c.editService("asks", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.11" })
	c.awaitAddress("asks", "192.0.2.11")
}

func TestServiceLB_NoAddressIsGivenTwice(t *testing.T) {
	t.Parallel()
	settings := controllers.Settings{}
	settings.Service.LoadBalancerPool = []string{"192.0.2.0/27"}
	c := newSettled(t, settings, "service-lb-controller")
	for i := range 20 {
		c.balanced(fmt.Sprintf("s%d", i), nil)
		if i == 10 {
			c.restart()
		}
	}
	c.reaches("all have one", func() bool {
		list, err := c.client.CoreV1().Services("default").List(c.ctx, metav1.ListOptions{})
		require.NoError(t, err)
		seen := map[string]bool{}
		for i := range list.Items {
			if a := addressesOf(&list.Items[i]); a != "" {
				require.False(t, seen[a], "%s is given twice", a)
				seen[a] = true
			}
		}
		return len(seen) == 20
	})
}

func (c *clocked) createNodeNamed(name string, edit func(*corev1.Node)) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if edit != nil {
		edit(n)
	}
	_, err := c.client.CoreV1().Nodes().Create(c.ctx, n, metav1.CreateOptions{})
	require.NoError(c, err)
}

func (c *clocked) node(name string) *corev1.Node {
	n, err := c.client.CoreV1().Nodes().Get(c.ctx, name, metav1.GetOptions{})
	require.NoError(c, err)
	return n
}

func TestNodeIPAM_SubnetsAreGivenAndGivenAgain(t *testing.T) {
	t.Parallel()
	settings := controllers.Settings{}
	ipam := &settings.NodeIPAM
	ipam.Allocate = true
	ipam.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.8.0.0/22"), netip.MustParsePrefix("fd00:8::/60")}
	c := newSettled(t, settings, "nodeipam")
	awaits := func(name string, want ...string) {
		t.Helper()
		c.reaches(fmt.Sprintf("%s has %v", name, want), func() bool { return slices.Equal(c.node(name).Spec.PodCIDRs, want) })
		require.Equal(t, want[0], c.node(name).Spec.PodCIDR)
	}
	// What a Node brought with it is not given to another.
	c.createNodeNamed("own", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.8.1.0/24", "fd00:8:0:1::/64"} })
	c.createNodeNamed("a", nil)
	awaits("a", "10.8.0.0/24", "fd00:8::/64")
	c.createNodeNamed("b", nil)
	awaits("b", "10.8.2.0/24", "fd00:8:0:2::/64")
	c.restart()
	c.createNodeNamed("c", nil)
	awaits("c", "10.8.3.0/24", "fd00:8:0:3::/64")
	c.createNodeNamed("d", nil)
	c.awaitEvent("CIDRNotAvailable", "Node d status is now: CIDRNotAvailable")
	require.NoError(t, c.client.CoreV1().Nodes().Delete(c.ctx, "b", metav1.DeleteOptions{}))
	c.reaches("d has b's", func() bool { return c.node("d").Spec.PodCIDR == "10.8.2.0/24" })
}

func TestNodeTTL_FollowsTheSizeOfTheCluster(t *testing.T) {
	t.Parallel()
	c := newSettled(t, controllers.Settings{}, "ttl")
	names := make([]string, 101)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i)
		c.createNodeNamed(names[i], nil)
	}
	all := func(want string) func() bool {
		return func() bool {
			list, err := c.client.CoreV1().Nodes().List(c.ctx, metav1.ListOptions{})
			require.NoError(t, err)
			return !slices.ContainsFunc(list.Items, func(n corev1.Node) bool { return n.Annotations["node.alpha.kubernetes.io/ttl"] != want })
		}
	}
	c.reaches("more than a hundred", all("15"))
	for _, name := range names[89:] {
		require.NoError(t, c.client.CoreV1().Nodes().Delete(c.ctx, name, metav1.DeleteOptions{}))
	}
	c.reaches("fewer than ninety", all("0"))
}

func TestCloudNode_InitialisesNodesThatWaitForACloud(t *testing.T) {
	t.Parallel()
	c := newSettled(t, controllers.Settings{}, "cloud-node")
	c.createNodeNamed("n", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{
			{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule},
			{Key: "mine", Effect: corev1.TaintEffectNoSchedule},
		}
	})
	c.reaches("the taint is gone", func() bool {
		taints := c.node("n").Spec.Taints
		return len(taints) == 1 && taints[0].Key == "mine"
	})
	c.awaitEvent("Synced", "Node synced successfully")
}
