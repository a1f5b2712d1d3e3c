package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/api/field"
)

// ValidateSelectsTemplate requires the selector to match the template's labels. An empty selector is
// reported elsewhere.
func ValidateSelectsTemplate(s labels.Selector, podLabels map[string]string, path *field.Path) field.ErrorList {
	if s.Empty() || s.Matches(labels.Set(podLabels)) {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("template", "metadata", "labels"), podLabels,
		"`selector` does not match template `labels`")}
}

// ValidateRunsForEver rejects templates of pods that would end by themselves.
func ValidateRunsForEver(kind string, spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.RestartPolicy != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), spec.RestartPolicy,
			[]corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("activeDeadlineSeconds"), "activeDeadlineSeconds in "+kind+
			" is not Supported"))
	}
	return errs
}
