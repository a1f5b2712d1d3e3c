package nodeipam_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestNodeIPAM_AssignsAndReusesSubnets(t *testing.T) {
	t.Parallel()
	settings := controllers.Settings{}
	ipam := &settings.NodeIPAM
	ipam.Allocate = true
	ipam.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.8.0.0/22"), netip.MustParsePrefix("fd00:8::/60")}
	c := controllertest.NewClockedWith(t, settings, "nodeipam")
	awaits := func(name string, want ...string) {
		t.Helper()
		c.Reaches(fmt.Sprintf("%s has %v", name, want), func() bool {
			return slices.Equal(c.Node(name).Spec.PodCIDRs, want)
		})
		require.Equal(t, want[0], c.Node(name).Spec.PodCIDR)
	}
	// The subnets that a Node was created with are not assigned to another Node.
	c.CreateNode("own", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.8.1.0/24", "fd00:8:0:1::/64"} })
	c.CreateNode("a", nil)
	awaits("a", "10.8.0.0/24", "fd00:8::/64")
	c.CreateNode("b", nil)
	awaits("b", "10.8.2.0/24", "fd00:8:0:2::/64")
	const prefix, v4 = "node_ipam_controller_", "10.8.0.0/22"
	c.AwaitMetric(2, prefix+"cidrset_cidrs_allocations_total", "clusterCIDR", v4)
	c.AwaitMetric(2, prefix+"cidrset_allocation_tries_per_request", "clusterCIDR", "fd00:8::/60")
	c.AwaitMetric(4, prefix+"cirdset_max_cidrs", "clusterCIDR", v4)
	c.AwaitMetric(0.75, prefix+"cidrset_usage_cidrs", "clusterCIDR", v4)
	c.Restart()
	c.CreateNode("c", nil)
	awaits("c", "10.8.3.0/24", "fd00:8:0:3::/64")
	c.CreateNode("d", nil)
	c.AwaitEvent("CIDRNotAvailable", "Node d status is now: CIDRNotAvailable")
	require.NoError(t, c.Client.CoreV1().Nodes().Delete(c.Context(), "b", metav1.DeleteOptions{}))
	c.Reaches("d has b's", func() bool { return c.Node("d").Spec.PodCIDR == "10.8.2.0/24" })
	c.AwaitMetric(1, prefix+"cidrset_cidrs_releases_total", "clusterCIDR", v4)
}
