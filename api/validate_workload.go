package api

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/api/field"
)

// validateSelectorAndTemplate checks what Deployment and ReplicaSet share: a selector that
// selects something, and a template whose pods it selects and that run for ever.
// Kubernetes' messages speak of the ReplicaSet where they mean a Deployment's, and the other way round.
func validateSelectorAndTemplate(s *metav1.LabelSelector, t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := validateOwnSelector("deployment", s, path.Child("selector"))
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return append(errs, field.Invalid(path.Child("selector"), s, "invalid label selector"))
	}
	errs = append(errs, selectsTemplate(parsed, t.Labels, path)...)
	errs = append(errs, validatePodTemplate(t, path.Child("template"))...)
	return append(errs, runsForEver("ReplicaSet", &t.Spec, path.Child("template", "spec"))...)
}

// validateOwnSelector wants a selector, and one that does not take every pod.
func validateOwnSelector(kind string, s *metav1.LabelSelector, path *field.Path) field.ErrorList {
	if s == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := selector(s, path)
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(path, s, "empty selector is invalid for "+kind))
	}
	return errs
}

// selectsTemplate wants the selector to match the template's labels. One that is not there matches none.
func selectsTemplate(s labels.Selector, of map[string]string, path *field.Path) field.ErrorList {
	if s.Empty() || s.Matches(labels.Set(of)) {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("template", "metadata", "labels"), of, "`selector` does not match template `labels`")}
}

// runsForEver refuses templates whose pods would end by themselves.
func runsForEver(kind string, spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.RestartPolicy != corev1.RestartPolicyAlways {
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
		if field.Enough(errs) {
			break
		}
		errs = append(errs, nonNegative(path.Child(c.name), c.n)...)
	}
	return errs
}

// notAbove wants one number to be no more than another, of which the message speaks by its full path.
func notAbove(path *field.Path, c, bound count) field.ErrorList {
	if c.n <= bound.n {
		return nil
	}
	return notAboveNamed(path, c, bound.n, path.Child(bound.name).String())
}

func notAboveNamed(path *field.Path, c count, most int32, name string) field.ErrorList {
	if c.n <= most {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child(c.name), c.n, "cannot be greater than "+name)}
}

// collisionCount may only grow: falling back would make a controller hash into the same
// name again.
func collisionCount(path *field.Path, n, old *int32) field.ErrorList {
	errs := nonNegativePtr(path, n)
	if old != nil && (n == nil || *n < *old) {
		errs = append(errs, field.Invalid(path, deref(n), "cannot be decremented"))
	}
	return errs
}

// podTemplateOf is a StatefulSet's template as its controller will use it: with a volume for each
// claim in place of one of the same name, and without what the controller sets itself.
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
