package quota

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/qos"
	"k8s.io/utils/ptr"
)

// InScope reports whether a quota applies to the object. A quota with scopes applies only to pods, or to claims,
// that match all of its scopes.
func InScope(spec *corev1.ResourceQuotaSpec, obj metav1.Object) bool {
	for _, scope := range spec.Scopes {
		if !matches(corev1.ScopedResourceSelectorRequirement{ScopeName: scope, Operator: corev1.ScopeSelectorOpExists},
			obj) {
			return false
		}
	}
	if spec.ScopeSelector == nil {
		return true
	}
	return !slices.ContainsFunc(spec.ScopeSelector.MatchExpressions,
		func(r corev1.ScopedResourceSelectorRequirement) bool {
			return !matches(r, obj)
		})
}

func matches(r corev1.ScopedResourceSelectorRequirement, obj metav1.Object) bool {
	switch o := obj.(type) {
	case *corev1.Pod:
		return podMatches(r, o)
	case *corev1.PersistentVolumeClaim:
		if r.ScopeName == corev1.ResourceQuotaScopeVolumeAttributesClass {
			return valueMatches(r, ptr.Deref(o.Spec.VolumeAttributesClassName, ""))
		}
	}
	return false
}

func podMatches(r corev1.ScopedResourceSelectorRequirement, pod *corev1.Pod) bool {
	terminating := pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds >= 0
	switch r.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return terminating
	case corev1.ResourceQuotaScopeNotTerminating:
		return !terminating
	case corev1.ResourceQuotaScopeBestEffort:
		return BestEffort(pod)
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !BestEffort(pod)
	case corev1.ResourceQuotaScopePriorityClass:
		return valueMatches(r, pod.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return affinityCrosses(pod.Spec.Affinity)
	}
	return false
}

// valueMatches compares as label selectors do: an absent value is in no set.
func valueMatches(r corev1.ScopedResourceSelectorRequirement, value string) bool {
	switch r.Operator {
	case corev1.ScopeSelectorOpExists:
		return value != ""
	case corev1.ScopeSelectorOpDoesNotExist:
		return value == ""
	case corev1.ScopeSelectorOpIn:
		return value != "" && slices.Contains(r.Values, value)
	case corev1.ScopeSelectorOpNotIn:
		return value == "" || !slices.Contains(r.Values, value)
	}
	return false
}

// BestEffort reports whether a pod neither requests CPU or memory nor limits them.
func BestEffort(pod *corev1.Pod) bool { return qos.ComputePodQOS(pod) == corev1.PodQOSBestEffort }

// affinityCrosses reports whether a pod's affinity or anti-affinity refers to pods of other namespaces, and so
// could keep pods there from being scheduled.
func affinityCrosses(a *corev1.Affinity) bool {
	if a == nil {
		return false
	}
	crosses := func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil }
	any := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) bool {
		return slices.ContainsFunc(required, crosses) ||
			slices.ContainsFunc(preferred, func(w corev1.WeightedPodAffinityTerm) bool {
				return crosses(w.PodAffinityTerm)
			})
	}
	if near := a.PodAffinity; near != nil && any(near.RequiredDuringSchedulingIgnoredDuringExecution,
		near.PreferredDuringSchedulingIgnoredDuringExecution) {
		return true
	}
	away := a.PodAntiAffinity
	return away != nil && any(away.RequiredDuringSchedulingIgnoredDuringExecution,
		away.PreferredDuringSchedulingIgnoredDuringExecution)
}
