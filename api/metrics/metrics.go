// Package metrics is the group metrics.k8s.io/v1beta1: the CPU and memory usage of nodes and pods. The server computes
// its objects on request.
package metrics

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kit/table"
)

// metricsColumns has the same columns as metrics-server.
var metricsColumns = []metav1.TableColumnDefinition{
	table.Name,
	{Name: "CPU", Type: "string", Description: "CPU usage, in cores"},
	{Name: "Memory", Type: "string", Description: "Size of the working set"},
	{Name: "Window", Type: "string", Description: "Time over which the CPU usage was measured"},
}

func metricsCells(name string, usage corev1.ResourceList, window metav1.Duration) []any {
	cpu, memory := usage[corev1.ResourceCPU], usage[corev1.ResourceMemory]
	return []any{name, resource.NewMilliQuantity(cpu.MilliValue(), resource.DecimalSI).String(), memory.String(),
		window.Round(time.Second).String()}
}

// nodeMetrics returns the kind with the usage of nodes: kubectl top nodes.
func nodeMetrics() *api.Resource {
	return api.VirtualOf(api.Resource{
		Names: api.Names{
			Group: metricsv1beta1.GroupName, Version: "v1beta1", Kind: "NodeMetrics", Plural: "nodes", Singular: "node",
		},
		Storage: api.Storage{
			New:     func() api.Object { return &metricsv1beta1.NodeMetrics{} },
			NewList: func() runtime.Object { return &metricsv1beta1.NodeMetricsList{} },
		},
		Table: api.Table{
			Columns: metricsColumns,
			Cells: func(obj api.Object) []any {
				m := obj.(*metricsv1beta1.NodeMetrics)
				return metricsCells(m.Name, m.Usage, m.Window)
			},
		},
	})
}

// podMetrics returns the kind with the usage of pods' containers: kubectl top pods, and autoscaling.
func podMetrics() *api.Resource {
	return api.VirtualOf(api.Resource{
		Names: api.Names{
			Group: metricsv1beta1.GroupName, Version: "v1beta1", Kind: "PodMetrics", Plural: "pods", Singular: "pod",
			Namespaced: true,
		},
		Storage: api.Storage{
			New:     func() api.Object { return &metricsv1beta1.PodMetrics{} },
			NewList: func() runtime.Object { return &metricsv1beta1.PodMetricsList{} },
		},
		Table: api.Table{
			Columns: metricsColumns,
			Cells: func(obj api.Object) []any {
				m := obj.(*metricsv1beta1.PodMetrics)
				sum := corev1.ResourceList{}
				for _, c := range m.Containers {
					for name, q := range c.Usage {
						total := sum[name]
						total.Add(q)
						sum[name] = total
					}
				}
				return metricsCells(m.Name, sum, m.Window)
			},
		},
	})
}

// Kinds returns the kinds of metrics.k8s.io.
func Kinds() []*api.Resource { return []*api.Resource{nodeMetrics(), podMetrics()} }
