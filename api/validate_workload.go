package api

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateSelectorAndTemplate checks what Deployment, ReplicaSet and DaemonSet share: a
// selector that selects something, and a template whose pods it selects and that run for ever.
// Kubernetes' messages speak of the ReplicaSet where they mean a Deployment's.
func validateSelectorAndTemplate(kind string, s *metav1.LabelSelector, t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := validateSelectorMatches(kind, s, t.Labels, path)
	errs = append(errs, validatePodTemplate(t, path.Child("template"))...)
	return append(errs, runsForEver(kind, &t.Spec, path.Child("template", "spec"))...)
}

func validateSelectorMatches(kind string, s *metav1.LabelSelector, of map[string]string, path *field.Path) field.ErrorList {
	at := path.Child("selector")
	if s == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	errs := selector(s, at)
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		of := strings.ToLower(kind)
		if kind == "ReplicaSet" {
			of = "deployment"
		}
		errs = append(errs, field.Invalid(at, s, "empty selector is invalid for "+of))
	}
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return append(errs, field.Invalid(at, s, "invalid label selector"))
	}
	if !parsed.Empty() && !parsed.Matches(labels.Set(of)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), of, "`selector` does not match template `labels`"))
	}
	return errs
}

// runsForEver refuses templates whose pods would end by themselves.
func runsForEver(kind string, spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.RestartPolicy != "" && spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), spec.RestartPolicy, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("activeDeadlineSeconds"), "activeDeadlineSeconds in "+kind+" is not Supported"))
	}
	return errs
}

// count is a number of a status with its field's name.
type count struct {
	name string
	n    int32
}

func counts(path *field.Path, list []count) field.ErrorList {
	var errs field.ErrorList
	for _, c := range list {
		errs = append(errs, nonNegative(path.Child(c.name), c.n)...)
	}
	return errs
}

func notAbove(path *field.Path, c, bound count) field.ErrorList {
	if c.n <= bound.n {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child(c.name), c.n, fmt.Sprintf("cannot be greater than %s", boundName(path, bound)))}
}

func boundName(path *field.Path, bound count) string { return path.Child(bound.name).String() }

// collisionCount may only grow: falling back would make a controller hash into the same
// name again.
func collisionCount(path *field.Path, n, old *int32) field.ErrorList {
	errs := nonNegativePtr(path, n)
	switch {
	case old != nil && n == nil:
		errs = append(errs, field.Invalid(path, n, "cannot be decremented"))
	case old != nil && *n < *old:
		errs = append(errs, field.Invalid(path, *n, "cannot be decremented"))
	}
	return errs
}

// addClaimVolume stands for the volume that a StatefulSet's controller will add for a claim
// template, so that mounts of it are found.
func addClaimVolume(t *corev1.PodTemplateSpec, name string) {
	for i := range t.Spec.Volumes {
		if t.Spec.Volumes[i].Name == name {
			return
		}
	}
	t.Spec.Volumes = append(t.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}})
}
