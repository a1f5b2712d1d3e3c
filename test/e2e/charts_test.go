//go:build e2e

package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// popular are charts with the hooks, webhooks and workloads of widely used ones, and the number of pods that each runs
// on two Nodes.
var popular = map[string]int{"ingress-nginx": 2, "cert-manager": 3, "argo-cd": 7, "kube-prometheus-stack": 4,
	"kyverno": 8}

// TestCharts_Install runs the life of each chart with the real Helm and simulated pods. Its Jobs, hooks and tests
// complete by themselves.
func TestCharts_Install(t *testing.T) {
	t.Parallel()
	helm := os.Getenv("HELM")
	require.NotEmpty(t, helm, "make e2e sets HELM")
	c := up(t, dataDir(t), "--nodes", "2")
	c.nodesReady(2)
	for chart, pods := range popular {
		run := func(args ...string) string {
			t.Helper()
			return c.run(helm, append(args, "--namespace", chart, "--timeout", "90s")...)
		}
		folder := "testdata/charts/" + chart
		wait := []string{"--wait", "--wait-for-jobs", "--set", "controller.service.type=ClusterIP"}
		require.Contains(t, run(append([]string{"install", chart, folder, "--create-namespace"}, wait...)...),
			"STATUS: deployed")
		c.allReady(chart, pods)
		require.NotContains(t, run("test", chart), "Phase:          Failed")
		require.Contains(t, run(append([]string{"upgrade", chart, folder}, wait...)...), "REVISION: 2")
		c.allReady(chart, pods)
		if chart == "kyverno" {
			require.Contains(t, run("test", chart, "--logs"), "simulated container test (image curlimages/curl:8.10.1)")
		}
		require.Contains(t, run("uninstall", chart, "--wait"), "uninstalled")
		left := c.run(kubectl, "get", "jobs,deployments,statefulsets,daemonsets", "-n", chart, "-o", "name")
		require.Empty(t, strings.ReplaceAll(left, "job.batch/argo-cd-redis-secret-init\n", ""), "that one has a TTL")
	}
}

// allReady requires that a number of pods of a namespace is ready, and that no Job has failed.
func (c *cluster) allReady(namespace string, pods int) {
	c.t.Helper()
	list, err := c.client.CoreV1().Pods(namespace).List(c.t.Context(), metav1.ListOptions{})
	require.NoError(c.t, err)
	ready := 0
	for i := range list.Items {
		require.NotEqual(c.t, corev1.PodFailed, list.Items[i].Status.Phase, list.Items[i].Name)
		for _, condition := range list.Items[i].Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue &&
				list.Items[i].DeletionTimestamp == nil {
				ready++
			}
		}
	}
	require.Equal(c.t, pods, ready, namespace)
}
