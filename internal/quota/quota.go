// Package quota computes an object's usage of a ResourceQuota: the resources of the quota that the object counts
// against, the amounts, and whether the object is in the quota's scope.
//
// Admission charges by these rules and the resourcequota controller recounts by them, so they are shared. The
// package contains only pure functions of objects.
// https://kubernetes.io/docs/concepts/policy/resource-quotas/
package quota

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

var (
	pods     = schema.GroupResource{Resource: "pods"}
	services = schema.GroupResource{Resource: "services"}
	claims   = schema.GroupResource{Resource: "persistentvolumeclaims"}
)

const countPrefix = "count/"

// aliases are the resources that can be counted without the prefix. Pods, services and claims are counted
// under their own names.
var aliases = []corev1.ResourceName{
	corev1.ResourceConfigMaps, corev1.ResourceSecrets, corev1.ResourceReplicationControllers, corev1.ResourceQuotas,
}

// CountOf returns the quota resource that counts the objects of a resource: "count/pods",
// "count/deployments.apps".
func CountOf(gr schema.GroupResource) corev1.ResourceName {
	return corev1.ResourceName(countPrefix + gr.String())
}

// Counts reports whether objects of a resource count against the quota resource called name.
func Counts(gr schema.GroupResource, name corev1.ResourceName) bool {
	if counted, ok := strings.CutPrefix(string(name), countPrefix); ok {
		return counted == gr.String()
	}
	switch gr {
	case pods:
		return isPodResource(name)
	case services:
		return name == corev1.ResourceServices || name == corev1.ResourceServicesNodePorts ||
			name == corev1.ResourceServicesLoadBalancers
	case claims:
		return isClaimResource(name)
	}
	return gr.Group == "" && corev1.ResourceName(gr.Resource) == name && slices.Contains(aliases, name)
}

// Counted returns the resource with the objects that a quota resource counts, if there is one.
func Counted(name corev1.ResourceName) (schema.GroupResource, bool) {
	if counted, ok := strings.CutPrefix(string(name), countPrefix); ok {
		return schema.ParseGroupResource(counted), true
	}
	for _, gr := range []schema.GroupResource{pods, services, claims} {
		if Counts(gr, name) {
			return gr, true
		}
	}
	return schema.GroupResource{Resource: string(name)}, slices.Contains(aliases, name)
}

// Mask returns the part of a list with names that are in another list.
func Mask(list, names corev1.ResourceList) corev1.ResourceList {
	masked := corev1.ResourceList{}
	for name, quantity := range list {
		if _, ok := names[name]; ok {
			masked[name] = quantity
		}
	}
	return masked
}

// Add returns the sum of two lists. A missing name counts as 0.
func Add(a, b corev1.ResourceList) corev1.ResourceList {
	sum := maps.Clone(a)
	if sum == nil {
		sum = corev1.ResourceList{}
	}
	for name, quantity := range b {
		have := sum[name].DeepCopy()
		have.Add(quantity)
		sum[name] = limits.Writable(have) // it is written to the quota's status
	}
	return sum
}

// Growth returns the positive differences between a and b. Amounts that are not larger are left out.
func Growth(a, b corev1.ResourceList) corev1.ResourceList {
	more := corev1.ResourceList{}
	for name, quantity := range a {
		quantity = quantity.DeepCopy()
		quantity.Sub(b[name])
		if quantity.Sign() > 0 {
			more[name] = quantity
		}
	}
	return more
}

// Equal compares amounts independently of their units.
func Equal(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}

func one() resource.Quantity { return *resource.NewQuantity(1, resource.DecimalSI) }
