package scheduler

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/internal/series/seriestest"
	"github.com/coxswain-dev/coxswain/scheduler/config"
)

func TestScheduler_MeasuresItsWork(t *testing.T) {
	t.Parallel()
	c := startCluster(t, Options{Config: config.Default()}, testNode("a", "4", "110"), testNode("b", "4", "110"))
	for i := range 8 {
		c.create(testPod(fmt.Sprint("p", i), "100m"))
	}
	c.create(testPod("large", "64"))
	value := func(name string, labels ...string) float64 {
		return seriestest.Value(t, c.metrics, "scheduler_"+name, labels...)
	}
	c.eventually("all attempts are counted", func() bool {
		return value("schedule_attempts_total", "result", "scheduled", "profile", "default-scheduler") == 8 &&
			value("schedule_attempts_total", "result", "unschedulable") == 1
	})
	require.EqualValues(t, 8, value("scheduling_attempt_duration_seconds", "result", "scheduled"))
	require.EqualValues(t, 8, value("pod_scheduling_sli_duration_seconds", "attempts", "1"))
	require.EqualValues(t, 8, value("pod_scheduling_attempts"))
	require.EqualValues(t, 9, value("scheduling_algorithm_duration_seconds"))
	require.GreaterOrEqual(t, value("queue_incoming_pods_total", "queue", "active"), 9.0)
	require.EqualValues(t, 1, value("preemption_attempts_total"))
	require.EqualValues(t, 2, value("cache_size", "type", "nodes"))
	c.eventually("the pod waits because of the plugin", func() bool {
		return value("unschedulable_pods", "plugin", "NodeResourcesFit", "profile", "default-scheduler") == 1
	})
	for point, n := range map[string]float64{"PreFilter": 9, "Filter": 8, "PreScore": 8, "Score": 8, "Reserve": 8,
		"Bind": 8} {
		require.Equal(t, n, value("framework_extension_point_duration_seconds", "extension_point", point,
			"status", "Success", "profile", "default-scheduler"), point)
	}
	for _, point := range []string{"Filter", "PostFilter"} {
		require.EqualValues(t, 1, value("framework_extension_point_duration_seconds", "extension_point", point,
			"status", "Unschedulable"), point)
	}
	require.EqualValues(t, 9, value("plugin_evaluation_total", "plugin", "NodeResourcesFit",
		"extension_point", "Filter", "profile", "default-scheduler"))
	require.EqualValues(t, 8, value("plugin_evaluation_total", "plugin", "NodeResourcesFit",
		"extension_point", "Score"))
	require.EqualValues(t, 2, value("plugin_execution_duration_seconds", "plugin", "NodeResourcesFit",
		"extension_point", "Filter", "status", "Success"), "the first of nine attempts, on two nodes")
	c.eventually("no pod is being bound", func() bool { return value("goroutines", "operation", "binding") == 0 })
}

func TestScheduler_ExportsTheResourcesOfPods(t *testing.T) {
	t.Parallel()
	resources := &PodResources{}
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(resources))
	require.Zero(t, seriestest.Value(t, registry, "kube_pod_resource_request"), "no scheduler runs")
	c := startCluster(t, Options{PodResources: resources}, testNode("a", "4", "110"))
	pod := testPod("web", "100m")
	pod.Spec.Priority = new(int32(7))
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		corev1.ResourceMemory: resource.MustParse("64Mi"), "example.com/gpu": resource.MustParse("2")}
	c.create(pod)
	c.eventually("the pod's requests", func() bool {
		return seriestest.Value(t, registry, "kube_pod_resource_request", "namespace", "default", "pod", "web",
			"node", "a", "priority", "7", "resource", "cpu", "unit", "cores") == 0.1
	})
	limit := func(labels ...string) float64 {
		return seriestest.Value(t, registry, "kube_pod_resource_limit", labels...)
	}
	require.EqualValues(t, 64<<20, limit("resource", "memory", "unit", "bytes"))
	require.EqualValues(t, 2, limit("resource", "example.com/gpu", "unit", ""))
}
