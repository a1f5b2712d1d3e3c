package api

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/equal"
)

func validatePod(p *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	errs := validatePodSpec(&p.Spec, p.Name, path)
	if p.Spec.NodeName != "" && len(p.Spec.SchedulingGates) > 0 && p.UID == "" {
		errs = append(errs, field.Forbidden(path.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return errs
}

// podUpdatable is what kube-apiserver says may change in a pod.
var podUpdatable = strings.Join([]string{
	"`spec.containers[*].image`", "`spec.initContainers[*].image`", "`spec.activeDeadlineSeconds`",
	"`spec.tolerations` (only additions to existing tolerations)",
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
}, ",")

// validatePodUpdate allows the few changes a running pod can follow. The fields that may
// change are checked one by one and then made equal in a copy: any other difference
// is refused.
func validatePodUpdate(p, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("spec")
	if equal.Semantic(&p.Spec, &old.Spec) {
		return nil
	}
	if len(p.Spec.Containers) != len(old.Spec.Containers) {
		return field.ErrorList{field.Forbidden(path.Child("containers"), "pod updates may not add or remove containers")}
	}
	if len(p.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return field.ErrorList{field.Forbidden(path.Child("initContainers"), "pod updates may not add or remove containers")}
	}
	errs := validateDeadlineUpdate(p, old, path)
	errs = append(errs, validateTolerationsUpdate(p, old, path)...)
	errs = append(errs, validateGatesUpdate(p, old, path)...)
	if len(errs) > 0 {
		return errs
	}
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
	if ptr.Deref(old.Spec.TerminationGracePeriodSeconds, 0) < 0 && ptr.Deref(rest.TerminationGracePeriodSeconds, 0) == 1 {
		rest.TerminationGracePeriodSeconds = old.Spec.TerminationGracePeriodSeconds
	}
	if len(old.Spec.SchedulingGates) > 0 {
		errs = append(errs, validateGatedUpdate(rest, &old.Spec, path)...)
	}
	if !equality.Semantic.DeepEqual(rest, &old.Spec) {
		errs = append(errs, field.Forbidden(path, fmt.Sprintf("pod updates may not change fields other than %s\n%v", podUpdatable, diff.Diff(&old.Spec, rest))))
	}
	return errs
}

// validateDeadlineUpdate lets the deadline come nearer, never go away.
func validateDeadlineUpdate(p, old *corev1.Pod, path *field.Path) field.ErrorList {
	was, is := old.Spec.ActiveDeadlineSeconds, p.Spec.ActiveDeadlineSeconds
	at := path.Child("activeDeadlineSeconds")
	switch {
	case is != nil && was != nil && *is > *was:
		return field.ErrorList{field.Invalid(at, *is, "must be less than or equal to previous value")}
	case is == nil && was != nil:
		return field.ErrorList{field.Invalid(at, is, "must not update from a positive integer to nil value")}
	}
	return nil
}

// validateTolerationsUpdate lets tolerations be added and their seconds be changed.
func validateTolerationsUpdate(p, old *corev1.Pod, path *field.Path) field.ErrorList {
	for i := range old.Spec.Tolerations {
		was := &old.Spec.Tolerations[i]
		if !slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.MatchToleration(was) }) {
			return field.ErrorList{field.Forbidden(path.Child("tolerations"), "existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return nil
}

// validateGatesUpdate lets scheduling gates be taken away, and the pod be bound only
// when none is left.
func validateGatesUpdate(p, old *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, gate := range p.Spec.SchedulingGates {
		if !slices.Contains(old.Spec.SchedulingGates, gate) {
			errs = append(errs, field.Forbidden(path.Child("schedulingGates").Child(gate.Name), "only deletion is allowed, but found new scheduling gate '"+gate.Name+"'"))
		}
	}
	if len(p.Spec.SchedulingGates) > 0 && p.Spec.NodeName != old.Spec.NodeName {
		errs = append(errs, field.Forbidden(path.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return errs
}

// validateGatedUpdate lets a pod that is held from the scheduler narrow where it may go
// (KEP-3838), and takes over into rest what may stay changed.
func validateGatedUpdate(rest, old *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key, value := range old.NodeSelector {
		if is, ok := rest.NodeSelector[key]; !ok || is != value {
			errs = append(errs, field.Invalid(path.Child("nodeSelector"), rest.NodeSelector, "only additions to spec.nodeSelector are allowed (no mutations or deletions)"))
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
	if rest.Affinity != nil {
		is = rest.Affinity.NodeAffinity
		rest.Affinity.NodeAffinity = was
		if old.Affinity == nil && *rest.Affinity == (corev1.Affinity{}) {
			rest.Affinity = nil
		}
	}
	if was == nil || was.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	at := path.Child("requiredDuringSchedulingIgnoredDuringExecution")
	if is == nil || is.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return field.ErrorList{field.Invalid(at, is, "must not be removed")}
	}
	oldTerms := was.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	terms := is.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	at = at.Child("nodeSelectorTerms")
	if len(oldTerms) != len(terms) {
		return field.ErrorList{field.Invalid(at, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	var errs field.ErrorList
	for i := range oldTerms {
		if !extends(terms[i].MatchExpressions, oldTerms[i].MatchExpressions) || !extends(terms[i].MatchFields, oldTerms[i].MatchFields) {
			errs = append(errs, field.Invalid(at.Index(i), terms[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

// extends says whether list begins with prefix.
func extends(list, prefix []corev1.NodeSelectorRequirement) bool {
	return len(list) >= len(prefix) && equality.Semantic.DeepEqual(list[:len(prefix)], prefix)
}

// warnPod tells of what is allowed and yet hardly meant.
func warnPod(p *corev1.Pod) []string {
	var warnings []string
	for i, c := range p.Spec.Containers {
		for j, env := range c.Env {
			if slices.ContainsFunc(c.Env[:j], func(e corev1.EnvVar) bool { return e.Name == env.Name }) {
				warnings = append(warnings, fmt.Sprintf("spec.containers[%d].env[%d]: hides previous definition of %q, which may be dropped when using apply", i, j, env.Name))
			}
		}
	}
	if grace := p.Spec.TerminationGracePeriodSeconds; grace != nil && *grace < 0 {
		warnings = append(warnings, "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1")
	}
	return warnings
}
