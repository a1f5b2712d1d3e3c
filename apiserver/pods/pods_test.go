package pods_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/apiserver/pods"
)

var (
	now    = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	before = metav1.NewTime(now.Add(-time.Hour))
)

func TestBind_RejectsBoundDeletedAndGatedPods(t *testing.T) {
	t.Parallel()
	binding := func(uid string) *corev1.Binding {
		return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u",
			Labels: map[string]string{"topology.kubernetes.io/zone": "z"}, Annotations: map[string]string{"a": "b"}},
			Target: corev1.ObjectReference{Name: "n"}}
	}
	for words, edit := range map[string]func(*corev1.Pod){
		"UID in object meta: other":           func(p *corev1.Pod) { p.UID = "other" },
		"pod p is being deleted":              func(p *corev1.Pod) { p.DeletionTimestamp = &before },
		`is already assigned to node "first"`: func(p *corev1.Pod) { p.Spec.NodeName = "first" },
		"non-empty .spec.schedulingGates": func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
		},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}
		edit(pod)
		was := pod.DeepCopy()
		err := pods.Bind(pod, binding("u"), now)
		require.True(t, apierrors.IsConflict(err), words)
		require.Contains(t, err.Error(), words)
		require.Equal(t, was, pod)
	}

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Status: corev1.PodStatus{
		Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
			Reason: "Unschedulable", LastTransitionTime: before}}}}
	require.NoError(t, pods.Bind(pod, binding("u"), now))
	require.Equal(t, "n", pod.Spec.NodeName)
	require.Equal(t, "z", pod.Labels["topology.kubernetes.io/zone"])
	require.Equal(t, "b", pod.Annotations["a"])
	require.Equal(t, []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now).Rfc3339Copy()}}, pod.Status.Conditions)
}

func TestValidateBinding_NamesANode(t *testing.T) {
	t.Parallel()
	for errs, target := range map[int]corev1.ObjectReference{
		0: {Name: "n"}, 1: {Kind: "Node"}, 2: {Kind: "Pod"},
	} {
		require.Len(t, pods.ValidateBinding(&corev1.Binding{Target: target}), errs, "%v", target)
	}
	require.Empty(t, pods.ValidateBinding(&corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}))
}

func TestIsDisruption_CountsOnlyRunningPods(t *testing.T) {
	t.Parallel()
	for phase, want := range map[corev1.PodPhase]bool{corev1.PodRunning: true, corev1.PodUnknown: true,
		corev1.PodPending: false, corev1.PodSucceeded: false, corev1.PodFailed: false} {
		pod := &corev1.Pod{Status: corev1.PodStatus{Phase: phase}}
		require.Equal(t, want, pods.IsDisruption(pod), phase)
		pod.DeletionTimestamp = &before
		require.False(t, pods.IsDisruption(pod), phase)
	}
}

func TestBudgetOf_ReturnsTheBudgetThatSelectsThePod(t *testing.T) {
	t.Parallel()
	budget := func(name string, selector *metav1.LabelSelector) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector}}
	}
	of := func(app string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	invalid := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "odd"}}}
	others := []*policyv1.PodDisruptionBudget{budget("none", nil), budget("other", of("db")), budget("odd", invalid)}
	name, err := pods.BudgetOf(pod, others)
	require.NoError(t, err)
	require.Empty(t, name)
	name, err = pods.BudgetOf(pod, append(others, budget("web", of("web"))))
	require.NoError(t, err)
	require.Equal(t, "web", name)
	_, err = pods.BudgetOf(pod, append(others, budget("web", of("web")), budget("all", &metav1.LabelSelector{})))
	require.ErrorContains(t, err, "more than one PodDisruptionBudget")
}

func TestSpend_TakesOneDisruption(t *testing.T) {
	t.Parallel()
	type budget struct {
		allowed, current, desired int32
		policy                    *policyv1.UnhealthyPodEvictionPolicyType
		unseen                    bool
	}
	for name, c := range map[string]struct {
		budget
		unready bool
		spent   bool
		refused string
	}{
		"one is left":                     {budget: budget{allowed: 1, current: 2, desired: 1}, spent: true},
		"none is left":                    {budget: budget{current: 1, desired: 1}, refused: "needs 1 healthy pods and has 1"},
		"not counted yet":                 {budget: budget{allowed: 1, unseen: true}, refused: "still being processed"},
		"unready, enough are healthy":     {budget: budget{current: 1, desired: 1}, unready: true},
		"unready, too few are healthy":    {budget: budget{current: 0, desired: 1}, unready: true, refused: "needs 1"},
		"unready, none is needed":         {budget: budget{allowed: 1}, unready: true, spent: true},
		"unready, always allowed":         {budget: budget{desired: 1, policy: ptr.To(policyv1.AlwaysAllow)}, unready: true},
		"ready, unready are always so":    {budget: budget{desired: 1, policy: ptr.To(policyv1.AlwaysAllow)}, refused: "needs 1"},
		"unready, policy of those enough": {budget: budget{desired: 1, policy: ptr.To(policyv1.IfHealthyBudget)}, unready: true, refused: "needs 1"},
	} {
		pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 1},
			Spec: policyv1.PodDisruptionBudgetSpec{UnhealthyPodEvictionPolicy: c.policy},
			Status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: c.allowed,
				CurrentHealthy: c.current, DesiredHealthy: c.desired}}
		if c.unseen {
			pdb.Generation = 2
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
		if !c.unready {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		err := pods.Spend(pdb, pod, now)
		if c.refused != "" {
			require.True(t, apierrors.IsTooManyRequests(err), name)
			require.True(t, apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause), name)
			require.Contains(t, err.(apierrors.APIStatus).Status().Details.Causes[0].Message, c.refused, name)
		} else {
			require.NoError(t, err, name)
		}
		_, noted := pdb.Status.DisruptedPods["p"]
		require.Equal(t, c.spent, noted, name)
		require.Equal(t, c.spent, pdb.Status.DisruptionsAllowed == c.allowed-1, name)
	}
}

func TestMarkEvicted_KeepsTheTimeOfTheFirstEviction(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pods.MarkEvicted(pod, before.Time)
	pods.MarkEvicted(pod, now)
	require.Len(t, pod.Status.Conditions, 1)
	c := pod.Status.Conditions[0]
	require.Equal(t, corev1.DisruptionTarget, c.Type)
	require.Equal(t, "EvictionByEvictionAPI", c.Reason)
	require.Equal(t, before.Rfc3339Copy(), c.LastTransitionTime)
}
