package scheduler

import (
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	podresource "k8s.io/component-helpers/resource"
)

// PodResources collects the requests and limits of all pods, which kube-scheduler serves at /metrics/resources. They
// are computed when they are collected, and there are none while no scheduler runs. The zero value is ready for use,
// and safe for concurrent use.
type PodResources struct {
	pods atomic.Pointer[corelisters.PodLister]
}

var (
	podLabels   = []string{"namespace", "pod", "node", "scheduler", "priority", "resource", "unit"}
	requestDesc = prometheus.NewDesc("kube_pod_resource_request", "Resources requested by workloads on the cluster, "+
		"broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources "+
		"along with the unit for the resource if any.", podLabels, nil)
	limitDesc = prometheus.NewDesc("kube_pod_resource_limit", "Resources limit for workloads on the cluster, broken "+
		"down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with "+
		"the unit for the resource if any.", podLabels, nil)
)

// follow makes r collect the pods of a running scheduler until stop is called. A nil r ignores it.
func (r *PodResources) follow(pods corelisters.PodLister) (stop func()) {
	if r == nil {
		return func() {}
	}
	r.pods.Store(&pods)
	return func() { r.pods.CompareAndSwap(&pods, nil) }
}

// Describe implements prometheus.Collector.
func (r *PodResources) Describe(ch chan<- *prometheus.Desc) {
	ch <- requestDesc
	ch <- limitDesc
}

// Collect implements prometheus.Collector.
func (r *PodResources) Collect(ch chan<- prometheus.Metric) {
	lister := r.pods.Load()
	if lister == nil {
		return
	}
	pods, _ := (*lister).List(labels.Everything()) // a lister returns no errors
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue // it uses none any more
		}
		o := podresource.PodResourcesOptions{}
		collectResources(ch, requestDesc, pod, podresource.PodRequests(pod, o))
		collectResources(ch, limitDesc, pod, podresource.PodLimits(pod, o))
	}
}

func collectResources(ch chan<- prometheus.Metric, desc *prometheus.Desc, pod *corev1.Pod, list corev1.ResourceList) {
	priority := ""
	if pod.Spec.Priority != nil {
		priority = strconv.Itoa(int(*pod.Spec.Priority))
	}
	for name, quantity := range list {
		value, unit := inUnit(name, quantity)
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, pod.Namespace, pod.Name,
			pod.Spec.NodeName, pod.Spec.SchedulerName, priority, string(name), unit)
	}
}

// inUnit returns a quantity of a resource and its unit, "" if it has none.
func inUnit(name corev1.ResourceName, q resource.Quantity) (value float64, unit string) {
	switch {
	case name == corev1.ResourceCPU:
		return q.AsApproximateFloat64(), "cores"
	case name == corev1.ResourceMemory, name == corev1.ResourceStorage, name == corev1.ResourceEphemeralStorage,
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		return float64(q.Value()), "bytes"
	case strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix):
		return float64(q.Value()), "integer"
	}
	return float64(q.Value()), ""
}
