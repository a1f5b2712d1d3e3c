package pods

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// IsDisruption reports whether the eviction of a pod is a disruption, which its budget must allow. A pod that has not
// started, has ended or is being deleted does not count as a healthy pod that is lost.
func IsDisruption(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodPending:
		return false
	}
	return pod.DeletionTimestamp.IsZero()
}

// BudgetOf returns the name of the budget that selects a pod, or "". budgets are all budgets in the pod's namespace.
// Two that select the pod are an error: a disruption is spent from one.
func BudgetOf(pod *corev1.Pod, budgets []*policyv1.PodDisruptionBudget) (name string, err error) {
	for _, b := range budgets {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if name != "" {
			return "", apierrors.NewInternalError(errors.New("this pod has more than one PodDisruptionBudget, which " +
				"the eviction subresource does not support"))
		}
		name = b.Name
	}
	return name, nil
}

// Spend takes the disruption of a pod from its budget, and records it there until the budget's controller has seen the
// pod's deletion. An unready pod needs no disruption, if the budget's policy allows it (KEP-3017).
func Spend(pdb *policyv1.PodDisruptionBudget, pod *corev1.Pod, now time.Time) error {
	if !isReady(pod) && sparesUnready(pdb) {
		return nil
	}
	switch st := &pdb.Status; {
	case st.ObservedGeneration < pdb.Generation:
		return exhausted("The disruption budget %s is still being processed by the server.", pdb.Name)
	case st.DisruptionsAllowed <= 0:
		return exhausted("The disruption budget %s needs %d healthy pods and has %d currently", pdb.Name,
			st.DesiredHealthy, st.CurrentHealthy)
	}
	pdb.Status.DisruptionsAllowed--
	if pdb.Status.DisruptedPods == nil {
		pdb.Status.DisruptedPods = map[string]metav1.Time{}
	}
	pdb.Status.DisruptedPods[pod.Name] = metav1.NewTime(now).Rfc3339Copy()
	return nil
}

// exhausted returns the Status for an eviction that a budget forbids.
func exhausted(format string, args ...any) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: policyv1.DisruptionBudgetCause, Message: fmt.Sprintf(format, args...),
	})
	return err
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// sparesUnready reports whether an unready pod may be evicted without spending a disruption.
func sparesUnready(pdb *policyv1.PodDisruptionBudget) bool {
	if p := pdb.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
		return true
	}
	return pdb.Status.CurrentHealthy >= pdb.Status.DesiredHealthy && pdb.Status.DesiredHealthy > 0
}

// MarkEvicted sets the condition that informs a pod's owner about the reason of its deletion (KEP-3329).
func MarkEvicted(pod *corev1.Pod, now time.Time) {
	setCondition(pod, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
		LastTransitionTime: metav1.NewTime(now).Rfc3339Copy()})
}
