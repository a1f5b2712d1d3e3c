//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
)

// TestHelm_RunsTheLifeCycleOfAChart installs a chart with one object of each common kind by the real Helm 3, upgrades
// it, rolls it back, and uninstalls it. Each step waits until all objects are ready.
func TestHelm_RunsTheLifeCycleOfAChart(t *testing.T) {
	t.Parallel()
	helm := os.Getenv("HELM")
	require.NotEmpty(t, helm, "make e2e sets HELM")
	c := up(t, dataDir(t), "--nodes", "2")
	c.nodesReady(2)
	run := func(args ...string) string {
		t.Helper()
		return c.run(helm, append(args, "--namespace", "shop")...)
	}
	image := func() string {
		t.Helper()
		d, err := c.client.AppsV1().Deployments("shop").Get(t.Context(), "shop", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, *d.Spec.Replicas, d.Status.ReadyReplicas, "helm waits for it")
		return d.Spec.Template.Spec.Containers[0].Image
	}
	const chart = "testdata/chart"

	require.Contains(t, run("install", "shop", chart, "--create-namespace", "--wait", "--timeout", "90s"),
		"STATUS: deployed")
	require.Equal(t, "shop:1", image())
	service, err := c.client.CoreV1().Services("shop").Get(t.Context(), "shop", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, service.Status.LoadBalancer.Ingress, "helm waits for the load balancer's address")
	cm, err := c.client.CoreV1().ConfigMaps("shop").Get(t.Context(), "shop", metav1.GetOptions{})
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(cm.Data["version"], kubeversion.Coxswain), cm.Data["version"])
	jobs, err := c.client.BatchV1().Jobs("shop").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, jobs.Items, "the hook ran and was deleted")

	require.Contains(t, run("test", "shop", "--timeout", "90s"), "Phase:          Succeeded")

	_, stderr, err := c.try(helm, "install", "shop", chart, "--namespace", "shop")
	require.Error(t, err)
	require.Contains(t, stderr, "cannot re-use a name that is still in use")

	require.Contains(t, run("upgrade", "shop", chart, "--set", "image=shop:2,replicas=3,autoscaling.max=9", "--wait",
		"--timeout", "90s"), "REVISION: 2")
	require.Equal(t, "shop:2", image())
	hpa, err := c.client.AutoscalingV2().HorizontalPodAutoscalers("shop").Get(t.Context(), "shop", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 9, hpa.Spec.MaxReplicas)
	require.Contains(t, run("upgrade", "shop", chart, "--reuse-values", "--dry-run=server"), "STATUS: pending-upgrade")

	require.Contains(t, run("rollback", "shop", "1", "--wait", "--timeout", "90s"), "Rollback was a success!")
	require.Equal(t, "shop:1", image())
	var history []struct {
		Revision int
		Status   string
	}
	require.NoError(t, json.Unmarshal([]byte(run("history", "shop", "-o", "json")), &history))
	require.Len(t, history, 3)
	require.Equal(t, "deployed", history[2].Status)
	require.Contains(t, run("status", "shop", "--show-resources"), "==> v1/CronJob")
	require.Contains(t, run("list"), "shop-1.0.0")
	require.Contains(t, run("get", "manifest", "shop"), "kind: PodDisruptionBudget")

	require.Contains(t, run("uninstall", "shop", "--wait", "--timeout", "90s"), `release "shop" uninstalled`)
	for _, kind := range []string{"deployments", "services", "ingresses", "secrets", "roles", "rolebindings", "hpa",
		"pdb", "jobs", "cronjobs"} {
		require.Empty(t, c.run(kubectl, "--namespace", "shop", "get", kind, "-o", "name"))
	}
	for _, kind := range []string{"configmap", "serviceaccount"} { // each namespace has default ones
		require.Empty(t, c.run(kubectl, "--namespace", "shop", "get", kind, "shop", "-o", "name", "--ignore-not-found"))
	}
}
