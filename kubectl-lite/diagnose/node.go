package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// FirstUnschedulable returns the first pod among the objects that the scheduler found no node for, or nil.
func FirstUnschedulable(objects []*unstructured.Unstructured) (*corev1.Pod, error) {
	for _, obj := range objects {
		for _, c := range conditionsOf(obj) {
			if obj.GetKind() != "Pod" || c.kind != string(corev1.PodScheduled) || c.status != "False" {
				continue
			}
			pod := &corev1.Pod{}
			return pod, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, pod)
		}
	}
	return nil, nil
}

// NodeVerdict explains why a pod does not fit on a node with reserved resources. It checks the filters that decide most
// often, in the scheduler's order.
func NodeVerdict(pod *corev1.Pod, node *corev1.Node, reserved corev1.ResourceList) string {
	var reasons []string
	if node.Spec.Unschedulable {
		reasons = append(reasons, "is cordoned")
	}
	if want := pod.Spec.NodeName; want != "" && want != node.Name {
		reasons = append(reasons, "is not the node that the pod names, "+want)
	}
	blocks := func(taint *corev1.Taint) bool {
		return taint.Effect != corev1.TaintEffectPreferNoSchedule && taint.Key != corev1.TaintNodeUnschedulable
	}
	if taint, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints,
		pod.Spec.Tolerations, blocks, true); found {
		reasons = append(reasons, "has the taint "+taint.ToString()+", which the pod does not tolerate")
	}
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err == nil && !matches {
		reasons = append(reasons, "lacks the labels that the pod requires")
	}
	requests := requestsOf(pod)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		request := requests[name]
		free := node.Status.Allocatable.Name(name, request.Format).DeepCopy()
		free.Sub(reserved[name])
		if request.Cmp(free) > 0 && !request.IsZero() {
			reasons = append(reasons, fmt.Sprintf("has %s %s free, but the pod requests %s", free.String(), name,
				request.String()))
		}
	}
	if len(reasons) == 0 {
		return "has room for it, as far as these checks show"
	}
	return strings.Join(reasons, "; ")
}

// requestsOf returns the resources that the scheduler reserves for a pod, and one of the node's places for pods.
func requestsOf(pod *corev1.Pod) corev1.ResourceList {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	one := requests[corev1.ResourcePods]
	one.Set(1)
	requests[corev1.ResourcePods] = one
	return requests
}

// Reserved returns the resources that the scheduler has reserved for pods, by node.
func Reserved(pods []corev1.Pod) map[string]corev1.ResourceList {
	reserved := map[string]corev1.ResourceList{}
	for i := range pods {
		node := pods[i].Spec.NodeName
		if reserved[node] == nil {
			reserved[node] = corev1.ResourceList{}
		}
		for name, amount := range requestsOf(&pods[i]) {
			sum := reserved[node][name]
			sum.Add(amount)
			reserved[node][name] = sum
		}
	}
	return reserved
}
