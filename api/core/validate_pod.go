package core

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/equal"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func validatePod(p *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	errs := podspec.ValidateAnnotations(p.Annotations, &p.Spec, field.NewPath("metadata", "annotations"))
	errs = append(errs, podspec.Validate(&p.Spec, p.Name, path)...)
	if p.Spec.ServiceAccountName != "" {
		return errs
	}
	for i := range p.Spec.Volumes {
		if field.Enough(errs) {
			break
		}
		projected := p.Spec.Volumes[i].Projected
		if projected == nil {
			continue
		}
		for j := range projected.Sources {
			if field.Enough(errs) {
				break
			}
			if projected.Sources[j].ServiceAccountToken != nil {
				errs = append(errs,
					field.Forbidden(path.Child("volumes").Index(i).Child("projected", "sources").Index(j).Child(
						"serviceAccountToken"),
						"must not be specified when serviceAccountName is not set"))
			}
		}
	}
	return errs
}

// validateNewPod rejects fields that a pod may get only after its creation.
func validateNewPod(p *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	if len(p.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(path.Child("ephemeralContainers"), "cannot be set on create"))
	}
	if p.Spec.NodeName != "" && len(p.Spec.SchedulingGates) > 0 {
		errs = append(errs,
			field.Forbidden(path.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return errs
}

// validateAnnotationUpdate rejects a change of the annotation that marks the mirror of a kubelet's static pod.
func validateAnnotationUpdate(p, old *corev1.Pod) field.ErrorList {
	keyPath := field.NewPath("metadata", "annotations").Key(corev1.MirrorPodAnnotationKey)
	is, has := p.Annotations[corev1.MirrorPodAnnotationKey]
	was, had := old.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case had && (!has || is != was):
		return field.ErrorList{field.Forbidden(keyPath, "may not remove or update mirror pod annotation")}
	case has && !had:
		return field.ErrorList{field.Forbidden(keyPath, "may not add mirror pod annotation")}
	}
	return nil
}

// podUpdatable is kube-apiserver's message about the fields of a pod that may change.
var podUpdatable = strings.Join([]string{
	"`spec.containers[*].image`", "`spec.initContainers[*].image`", "`spec.activeDeadlineSeconds`",
	"`spec.tolerations` (only additions to existing tolerations)",
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
}, ",")

// validatePodUpdate allows the few changes that a running pod supports. It checks the mutable fields one by one and
// copies them to the new pod. After that, any remaining difference is an error.
func validatePodUpdate(p, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateAnnotationUpdate(p, old)
	if equal.Semantic(&p.Spec, &old.Spec) {
		return errs
	}
	if len(p.Spec.Containers) != len(old.Spec.Containers) {
		return append(errs, field.Forbidden(path.Child("containers"), "pod updates may not add or remove containers"))
	}
	if len(p.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return append(errs, field.Forbidden(path.Child("initContainers"),
			"pod updates may not add or remove containers"))
	}
	if later, deadlineErrs := validateDeadlineUpdate(p, old, path); len(deadlineErrs) > 0 {
		if errs = append(errs, deadlineErrs...); later {
			return errs
		}
	}
	errs = append(errs, validateTolerationsUpdate(p, old, path)...)
	errs = append(errs, validateGatesUpdate(p, old, path)...)
	rest := p.Spec.DeepCopy()
	for i := range rest.Containers {
		rest.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range rest.InitContainers {
		rest.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	rest.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	rest.Tolerations = old.Spec.Tolerations
	rest.SchedulingGates = old.Spec.SchedulingGates
	if ptr.Deref(old.Spec.TerminationGracePeriodSeconds, 0) < 0 &&
		ptr.Deref(rest.TerminationGracePeriodSeconds, 0) == 1 {
		rest.TerminationGracePeriodSeconds = old.Spec.TerminationGracePeriodSeconds
	}
	if len(old.Spec.SchedulingGates) > 0 { // KEP-3838
		errs = append(errs, validateGatedUpdate(rest, &old.Spec, path)...)
	}
	if !equality.Semantic.DeepEqual(rest, &old.Spec) {
		errs = append(errs,
			field.Forbidden(path, fmt.Sprintf("pod updates may not change fields other than %s\n%v", podUpdatable,
				validate.Diff(&old.Spec, rest))))
	}
	return errs
}

// validateDeadlineUpdate lets the deadline be set or moved closer. later reports that the update moves it away.
// Kubernetes makes no further checks then.
func validateDeadlineUpdate(p, old *corev1.Pod, path *field.Path) (later bool, errs field.ErrorList) {
	was, is := old.Spec.ActiveDeadlineSeconds, p.Spec.ActiveDeadlineSeconds
	fldPath := path.Child("activeDeadlineSeconds")
	switch {
	case is != nil && was != nil && *is > *was:
		return true, field.ErrorList{field.Invalid(fldPath, *is, "must be less than or equal to previous value")}
	case is == nil && was != nil:
		return false, field.ErrorList{
			field.Invalid(fldPath, is, "must not update from a positive integer to nil value")}
	}
	return false, nil
}

// validateTolerationsUpdate lets tolerations be added, and their tolerationSeconds change.
func validateTolerationsUpdate(p, old *corev1.Pod, path *field.Path) field.ErrorList {
	present := validate.Members(p.Spec.Tolerations, podspec.TimelessToleration)
	for i := range old.Spec.Tolerations {
		if !present(podspec.TimelessToleration(&old.Spec.Tolerations[i])) {
			return field.ErrorList{field.Forbidden(path.Child("tolerations"),
				"existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return nil
}

// validateGatesUpdate lets scheduling gates be removed.
func validateGatesUpdate(p, old *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	existing := validate.Members(old.Spec.SchedulingGates, func(g *corev1.PodSchedulingGate) string { return g.Name })
	for i, gate := range p.Spec.SchedulingGates {
		if field.Enough(errs) {
			break
		}
		if !existing(gate.Name) {
			errs = append(errs, field.Forbidden(path.Child("schedulingGates").Index(i).Child("name"),
				"only deletion is allowed, but found new scheduling gate '"+gate.Name+"'"))
		}
	}
	return errs
}

// validateGatedUpdate lets a pod with scheduling gates narrow its node selection (KEP-3838), and sets the fields of
// rest that may change to their old values.
func validateGatedUpdate(rest, old *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key, value := range old.NodeSelector {
		if field.Enough(errs) {
			break
		}
		if is, ok := rest.NodeSelector[key]; !ok || is != value {
			errs = append(errs, field.Invalid(path.Child("nodeSelector"), rest.NodeSelector,
				"only additions to spec.nodeSelector are allowed (no mutations or deletions)"))
			break
		}
	}
	rest.NodeSelector = old.NodeSelector
	errs = append(errs, validateGatedAffinity(rest, old, path.Child("affinity", "nodeAffinity"))...)
	return errs
}

func validateGatedAffinity(rest, old *corev1.PodSpec, path *field.Path) field.ErrorList {
	var was, is *corev1.NodeAffinity
	if old.Affinity != nil {
		was = old.Affinity.NodeAffinity
	}
	switch {
	case rest.Affinity != nil:
		is = rest.Affinity.NodeAffinity
		rest.Affinity.NodeAffinity = was
		if old.Affinity == nil && *rest.Affinity == (corev1.Affinity{}) {
			rest.Affinity = nil
		}
	case was != nil:
		rest.Affinity = &corev1.Affinity{NodeAffinity: was}
	}
	if was == nil || was.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	oldTerms := was.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	var terms []corev1.NodeSelectorTerm
	if is != nil && is.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms = is.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	fldPath := path.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	if len(oldTerms) > 0 && len(oldTerms) != len(terms) {
		return field.ErrorList{field.Invalid(fldPath, terms,
			"no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	var errs field.ErrorList
	for i := range oldTerms {
		if field.Enough(errs) {
			break
		}
		if !extendsTerm(&terms[i], &oldTerms[i]) {
			errs = append(errs,
				field.Invalid(fldPath.Index(i), terms[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

// extendsTerm reports whether a term only adds requirements. An empty term selects no node, and must stay empty.
func extendsTerm(term, old *corev1.NodeSelectorTerm) bool {
	if len(old.MatchExpressions)+len(old.MatchFields) == 0 {
		return len(term.MatchExpressions)+len(term.MatchFields) == 0
	}
	return extends(term.MatchExpressions, old.MatchExpressions) && extends(term.MatchFields, old.MatchFields)
}

// extends reports whether list begins with prefix.
func extends(list, prefix []corev1.NodeSelectorRequirement) bool {
	return len(list) >= len(prefix) && equality.Semantic.DeepEqual(list[:len(prefix)], prefix)
}
