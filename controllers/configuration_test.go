package controllers_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/controllers"
)

func TestConfiguration_HasTheOptionsInKubernetesForm(t *testing.T) {
	t.Parallel()
	o := controllers.Options{Controllers: []string{"*", "-ttl"}, LeaderElect: true,
		Workers: map[string]int{"job-controller": 7}}
	o.Settings.NodeIPAM.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.8.0.0/16"),
		netip.MustParsePrefix("fd00:8::/56")}
	text, err := json.Marshal(o.Configuration())
	require.NoError(t, err)
	var c map[string]any
	require.NoError(t, json.Unmarshal(text, &c))
	in := func(section, field string) any { return c[section].(map[string]any)[field] }
	require.Equal(t, "KubeControllerManagerConfiguration", c["kind"])
	require.Equal(t, []any{"*", "-ttl"}, in("Generic", "Controllers"))
	require.Equal(t, "kube-controller-manager", in("Generic", "LeaderElection").(map[string]any)["resourceName"])
	require.Equal(t, "10.8.0.0/16,fd00:8::/56", in("KubeCloudShared", "ClusterCIDR"))
	require.EqualValues(t, 7, in("JobController", "ConcurrentJobSyncs"))
	require.EqualValues(t, 5, in("DeploymentController", "ConcurrentDeploymentSyncs"))
	require.Equal(t, "50s", in("NodeLifecycleController", "NodeMonitorGracePeriod"))
	require.EqualValues(t, 12500, in("PodGCController", "TerminatedPodGCThreshold"))
}
