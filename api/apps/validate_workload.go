package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

// validateSelectorAndTemplate makes the checks that Deployments and ReplicaSets share: the selector must not be empty,
// and the template must match it and have pods that run forever. Kubernetes' messages name the ReplicaSet for a
// Deployment and the Deployment for a ReplicaSet.
func validateSelectorAndTemplate(s *metav1.LabelSelector, t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := validateOwnSelector("deployment", s, path.Child("selector"))
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return append(errs, field.Invalid(path.Child("selector"), s, "invalid label selector"))
	}
	errs = append(errs, podspec.ValidateSelectsTemplate(parsed, t.Labels, path)...)
	errs = append(errs, podspec.ValidateTemplate(t, path.Child("template"))...)
	return append(errs, podspec.ValidateRunsForEver("ReplicaSet", &t.Spec, path.Child("template", "spec"))...)
}

// validateOwnSelector requires a selector, and rejects one that matches every pod.
func validateOwnSelector(kind string, s *metav1.LabelSelector, path *field.Path) field.ErrorList {
	if s == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := validate.Selector(s, path)
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(path, s, "empty selector is invalid for "+kind))
	}
	return errs
}

// collisionCount may only increase: with a lower one a controller would compute the same name again.
func collisionCount(path *field.Path, n, old *int32) field.ErrorList {
	errs := validate.NonNegativePtr(path, n)
	if old != nil && (n == nil || *n < *old) {
		errs = append(errs, field.Invalid(path, ptr.Deref(n, 0), "cannot be decremented"))
	}
	return errs
}

// podTemplateOf returns a StatefulSet's template as its controller uses it: the volume of each claim replaces one with
// the same name, and the fields that the controller sets are empty.
func podTemplateOf(spec *appsv1.StatefulSetSpec) *corev1.PodTemplateSpec {
	t := spec.Template.DeepCopy()
	t.Spec.Hostname, t.Spec.Subdomain = "", ""
	var volumes []corev1.Volume
	claimed := make(map[string]bool, len(spec.VolumeClaimTemplates))
	for _, claim := range spec.VolumeClaimTemplates {
		if claimed[claim.Name] {
			continue
		}
		claimed[claim.Name] = true
		volumes = append(volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
		}})
	}
	for _, v := range t.Spec.Volumes {
		if !claimed[v.Name] {
			volumes = append(volumes, v)
		}
	}
	t.Spec.Volumes = volumes
	return t
}
