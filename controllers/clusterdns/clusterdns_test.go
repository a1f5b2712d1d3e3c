package clusterdns_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/clusterdns"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

type cluster struct{ *controllertest.Clocked }

func start(t *testing.T) cluster {
	return cluster{controllertest.NewClockedWith(t, controllers.Settings{}, "cluster-dns")}
}

// node creates a Node, Ready, with a condition for its DNS server.
func (c cluster) node(name string, serves corev1.ConditionStatus, subnets ...string) {
	c.CreateNode(name, func(n *corev1.Node) {
		n.Labels = map[string]string{corev1.LabelTopologyZone: "zone-" + name}
		if len(subnets) > 0 {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = subnets[0], subnets
		}
	})
	c.report(name, clusterdns.Ready, serves)
	c.report(name, corev1.NodeReady, corev1.ConditionTrue)
}

// report sets a condition of a Node.
func (c cluster) report(name string, condition corev1.NodeConditionType, status corev1.ConditionStatus) {
	controllertest.EditStatus(c.Cluster, c.Client.CoreV1().Nodes(), name, func(n *corev1.Node) {
		n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(old corev1.NodeCondition) bool {
			return old.Type == condition
		})
		if status != "" {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: condition, Status: status})
		}
	})
}

func (c cluster) slices() []discoveryv1.EndpointSlice {
	list, err := c.Client.DiscoveryV1().EndpointSlices("kube-system").List(c.Context(),
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kube-dns"})
	require.NoError(c, err)
	return list.Items
}

// publishes waits until the endpoints are these: addresses by the names of their Nodes.
func (c cluster) publishes(what string, want map[string]string) {
	c.Helper()
	c.Reaches(what, func() bool {
		found := map[string]string{}
		for _, s := range c.slices() {
			for _, e := range s.Endpoints {
				found[*e.NodeName] = e.Addresses[0]
			}
		}
		return maps.Equal(found, want)
	})
}

func (c cluster) service() (*corev1.Service, error) {
	return c.Client.CoreV1().Services("kube-system").Get(c.Context(), "kube-dns", metav1.GetOptions{})
}

func TestClusterDNS_PublishesTheServersOfReadyNodes(t *testing.T) {
	t.Parallel()
	c := start(t)
	c.node("silent", "", "10.244.9.0/24")
	c.node("starting", corev1.ConditionFalse, "10.244.8.0/24")
	c.AwaitRest()
	_, err := c.service()
	require.Error(t, err, "no node has a DNS server")

	c.node("a", corev1.ConditionTrue, "10.244.1.0/24")
	c.node("b", corev1.ConditionTrue, "fd00::/64", "10.244.2.0/24")
	c.node("v6", corev1.ConditionTrue, "fd01::/64")
	c.node("nowhere", corev1.ConditionTrue)
	c.publishes("both", map[string]string{"a": "10.244.1.0", "b": "10.244.2.0"})

	service, err := c.service()
	require.NoError(t, err)
	require.Equal(t, "10.96.0.10", service.Spec.ClusterIP)
	require.Empty(t, service.Spec.Selector)
	require.Equal(t, corev1.ServiceTrafficDistributionPreferSameNode, *service.Spec.TrafficDistribution)
	slice := c.slices()[0]
	require.Len(t, c.slices(), 1)
	require.Equal(t, service.UID, slice.OwnerReferences[0].UID)
	require.ElementsMatch(t, []discoveryv1.EndpointPort{
		{Name: new("dns"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(53))},
		{Name: new("dns-tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(53))},
	}, slice.Ports)
	i := slices.IndexFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return *e.NodeName == "a" })
	require.Equal(t, discoveryv1.Endpoint{
		Addresses: []string{"10.244.1.0"}, NodeName: new("a"), Zone: new("zone-a"),
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		Hints:      &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "a"}}},
	}, slice.Endpoints[i])
}

func TestClusterDNS_FollowsItsNodes(t *testing.T) {
	t.Parallel()
	c := start(t)
	all := map[string]string{"a": "10.244.1.0", "b": "10.244.2.0"}
	onlyA := map[string]string{"a": "10.244.1.0"}
	c.node("a", corev1.ConditionTrue, "10.244.1.0/24")
	c.node("b", corev1.ConditionTrue, "10.244.2.0/24")
	c.publishes("both", all)
	for _, condition := range []corev1.NodeConditionType{corev1.NodeReady, clusterdns.Ready} {
		for _, status := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionUnknown, ""} {
			c.report("b", condition, status)
			c.publishes(string(condition)+" is "+string(status), onlyA)
			c.report("b", condition, corev1.ConditionTrue)
			c.publishes(string(condition)+" is True again", all)
		}
	}
	for _, name := range []string{"b", "a"} {
		require.NoError(t, c.Client.CoreV1().Nodes().Delete(c.Context(), name, metav1.DeleteOptions{}))
		delete(all, name)
		c.publishes(name+" is gone", all)
	}
	_, err := c.service()
	require.NoError(t, err, "pods have its address")
}

func TestClusterDNS_LeavesAForeignServiceAlone(t *testing.T) {
	t.Parallel()
	c := start(t)
	foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kube-dns"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 53}}}}
	services := c.Client.CoreV1().Services("kube-system")
	_, err := services.Create(c.Context(), foreign, metav1.CreateOptions{})
	require.NoError(t, err)
	c.node("a", corev1.ConditionTrue, "10.244.1.0/24")
	c.AwaitRest()
	require.Empty(t, c.slices())

	require.NoError(t, services.Delete(c.Context(), "kube-dns", metav1.DeleteOptions{}))
	c.publishes("its place is free", map[string]string{"a": "10.244.1.0"})
	c.StopControllers() // which would create it again
	require.NoError(t, services.Delete(c.Context(), "kube-dns", metav1.DeleteOptions{}))
	_, err = services.Create(c.Context(), foreign, metav1.CreateOptions{})
	require.NoError(t, err)
	c.Restart()
	c.publishes("it is another's again", map[string]string{})
	require.Empty(t, c.slices())
}

func TestClusterDNS_ReplacesTheSliceOfEarlierVersions(t *testing.T) {
	t.Parallel()
	c := start(t)
	c.node("a", corev1.ConditionTrue, "10.244.1.0/24")
	c.publishes("its server", map[string]string{"a": "10.244.1.0"})
	service, err := c.service()
	require.NoError(t, err)
	_, err = c.Client.DiscoveryV1().EndpointSlices("kube-system").Create(c.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-dns-coxswain", Labels: map[string]string{
			discoveryv1.LabelServiceName: "kube-dns", discoveryv1.LabelManagedBy: clusterdns.Manager},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "kube-dns",
				UID: service.UID}}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.7.0"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.Reaches("only the controller's own are left", func() bool {
		all := c.slices()
		return len(all) == 1 && all[0].Name != "kube-dns-coxswain"
	})
}
