package api

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// computed completes the registration of a read-only kind: one whose objects the server works out
// when they are asked for, and does not keep.
func computed(r Resource) *Resource {
	r.Computed = true
	r.NoVerbs = []string{"create", "delete", "deletecollection", "patch", "update", "watch"}
	return &r
}

// metricsColumns are metrics-server's.
var metricsColumns = []metav1.TableColumnDefinition{
	nameColumn,
	{Name: "CPU", Type: "string", Description: "CPU that it takes, in cores"},
	{Name: "Memory", Type: "string", Description: "Memory of its working set"},
	{Name: "Window", Type: "string", Description: "Time over which CPU was counted"},
}

func metricsCells(name string, usage corev1.ResourceList, window metav1.Duration) []any {
	cpu, memory := usage[corev1.ResourceCPU], usage[corev1.ResourceMemory]
	return []any{name, resource.NewMilliQuantity(cpu.MilliValue(), resource.DecimalSI).String(), memory.String(), window.Round(time.Second).String()}
}

// nodeMetrics are what nodes take: kubectl top nodes.
func nodeMetrics() *Resource {
	return computed(Resource{
		Group: metricsv1beta1.GroupName, Version: "v1beta1", Kind: "NodeMetrics", Plural: "nodes", Singular: "node",
		New:     func() Object { return &metricsv1beta1.NodeMetrics{} },
		NewList: func() runtime.Object { return &metricsv1beta1.NodeMetricsList{} },
		Columns: metricsColumns,
		Cells: func(obj Object) []any {
			m := obj.(*metricsv1beta1.NodeMetrics)
			return metricsCells(m.Name, m.Usage, m.Window)
		},
	})
}

// podMetrics are what containers take: kubectl top pods, and the autoscaler.
func podMetrics() *Resource {
	return computed(Resource{
		Group: metricsv1beta1.GroupName, Version: "v1beta1", Kind: "PodMetrics", Plural: "pods", Singular: "pod", Namespaced: true,
		New:     func() Object { return &metricsv1beta1.PodMetrics{} },
		NewList: func() runtime.Object { return &metricsv1beta1.PodMetricsList{} },
		Columns: metricsColumns,
		Cells: func(obj Object) []any {
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
	})
}

// Metrics are the kinds of metrics.k8s.io. In Kubernetes they are no part of the API server but of an extension that
// most clusters have.
func Metrics() []*Resource { return []*Resource{nodeMetrics(), podMetrics()} }
