package endpointslice_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// hints returns the zones in the hints of a Service's endpoints, by pod.
func (c network) hints(service string) map[string]string {
	zones := map[string]string{}
	for _, s := range c.Slices(service) {
		for _, e := range s.Endpoints {
			if e.Hints != nil {
				zones[e.TargetRef.Name] = e.Hints.ForZones[0].Name
			}
		}
	}
	return zones
}

func (c network) awaitHints(service string, want map[string]string) {
	c.Helper()
	var got map[string]string
	defer func() {
		if c.Failed() {
			c.Logf("hints: %v, want %v", got, want)
		}
	}()
	c.Eventually("hints", func() bool {
		got = c.hints(service)
		if len(got) != len(want) {
			return false
		}
		for name, zone := range want {
			if got[name] != zone {
				return false
			}
		}
		return true
	})
}

// nodeIs sets a Node's readiness and its amount of CPU.
func (c network) nodeIs(name string, ready corev1.ConditionStatus, cpu string) {
	c.Helper()
	nodes := c.Client.CoreV1().Nodes()
	// A server that is not the test's own removes the taint of the new Node at the same time.
	require.NoError(c, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n, err := nodes.Get(c.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		_, err = nodes.UpdateStatus(c.Context(), n, metav1.UpdateOptions{})
		return err
	}))
}

func TestEndpointSlice_DistributesEndpointsAmongZones(t *testing.T) {
	t.Parallel()
	c := newNetwork(t)
	c.nodeIs("node-0", corev1.ConditionTrue, "4")
	c.nodeIs("node-1", corev1.ConditionTrue, "4")
	c.service("web", func(s *corev1.Service) {
		s.Annotations = map[string]string{corev1.AnnotationTopologyMode: "Auto"}
		s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameNode) // which is overridden
	})
	c.AwaitEvent("TopologyAwareHintsDisabled",
		"Insufficient number of endpoints (0 endpoints, 2 zones), addressType: IPv4")
	own := map[string]string{"web-0": "east", "web-1": "west", "web-2": "east", "web-3": "west"}
	for i := range 4 {
		c.backendPod(i, nil)
	}
	c.awaitHints("web", own)
	c.AwaitEvent("TopologyAwareHintsEnabled", "Topology Aware Hints has been enabled, addressType: IPv4")
	require.Empty(t, c.Slices("web")[0].Endpoints[0].Hints.ForNodes)

	// Three quarters of the CPU are in the west, so three endpoints serve it.
	c.nodeIs("node-1", corev1.ConditionTrue, "12")
	count := func(zone string) (n int) {
		for _, z := range c.hints("web") {
			if z == zone {
				n++
			}
		}
		return n
	}
	for i := 4; i < 6; i++ { // which writes the slice
		c.backendPod(i, nil)
	}
	c.Eventually("the west is served by four of six", func() bool { return count("west") == 4 && count("east") == 2 })

	c.nodeIs("node-1", corev1.ConditionFalse, "12")
	c.awaitHints("web", map[string]string{})
	c.AwaitEvent("TopologyAwareHintsDisabled",
		"Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4")
	c.nodeIs("node-1", corev1.ConditionTrue, "4")
	c.Eventually("hints again", func() bool { return count("west") == 3 && count("east") == 3 })

	_, err := c.Client.CoreV1().Services("default").Patch(c.Context(), "web", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"service.kubernetes.io/topology-mode":null}},"spec":{"trafficDistribution":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	c.awaitHints("web", map[string]string{})
	c.AwaitEvent("TopologyAwareHintsDisabled", "Topology Aware Hints has been disabled, addressType: IPv4")
}
