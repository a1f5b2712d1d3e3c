package podspec

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
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

// ValidateAnnotations checks the annotations of a pod or template that have a meaning in Kubernetes.
func ValidateAnnotations(annotations map[string]string, spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	if len(annotations) == 0 {
		return nil
	}
	var errs field.ErrorList
	if value, ok := annotations[corev1.MirrorPodAnnotationKey]; ok && spec.NodeName == "" {
		errs = append(errs, field.Invalid(path.Key(corev1.MirrorPodAnnotationKey), value,
			"must set spec.nodeName if mirror pod annotation is set"))
	}
	if value, ok := annotations[corev1.PodDeletionCost]; ok && !isDeletionCost(value) {
		errs = append(errs, field.Invalid(path.Key(corev1.PodDeletionCost), value, "must be a 32bit integer"))
	}
	return errs
}

func isDeletionCost(value string) bool {
	n, err := strconv.ParseInt(value, 10, 32)
	return err == nil && strconv.FormatInt(n, 10) == value
}

// ValidateTemplate checks the template of a workload.
func ValidateTemplate(t *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	errs := validate.Labels(t.Labels, path.Child("labels"))
	errs = append(errs, validate.Annotations(t.Annotations, path.Child("annotations"))...)
	errs = append(errs, ValidateAnnotations(t.Annotations, &t.Spec, path.Child("annotations"))...)
	errs = append(errs, Validate(&t.Spec, "", path.Child("spec"))...)
	if len(t.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("spec", "ephemeralContainers"),
			"ephemeral containers not allowed in pod template"))
	}
	return errs
}
