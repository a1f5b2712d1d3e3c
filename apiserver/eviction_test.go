package apiserver_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/testenv"
)

func TestEviction_SpendsAtMostTheBudget(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly()))
	ctx := t.Context()
	pods, budgets := client.CoreV1().Pods("default"), client.PolicyV1().PodDisruptionBudgets("default")
	for _, name := range []string{"a", "b", "pending"} {
		pod, err := pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		if name == "pending" {
			continue
		}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	one := intstr.FromInt32(1)
	pdb, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	evict := func(name string) error {
		return pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}

	require.True(t, apierrors.IsTooManyRequests(evict("a")), "the controller has not counted yet")
	require.NoError(t, evict("pending"), "no healthy pod is lost")

	pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: pdb.Generation, DisruptionsAllowed: 1,
		CurrentHealthy: 2, DesiredHealthy: 1, ExpectedPods: 2}
	_, err = budgets.UpdateStatus(ctx, pdb, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, evict("a"))
	err = evict("b")
	require.True(t, apierrors.IsTooManyRequests(err))
	require.True(t, apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause))

	got, err := budgets.Get(ctx, "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Zero(t, got.Status.DisruptionsAllowed)
	require.Contains(t, got.Status.DisruptedPods, "a")
}

// An evicted pod has a condition with the reason, which a Job's podFailurePolicy reads.
func TestEviction_SetsTheConditionOfThePod(t *testing.T) {
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testenv.Start(t, testenv.APIServerOnly()))
	ctx := t.Context()
	pods := client.CoreV1().Pods("default")
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: []string{"example.com/keep"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	evict := func(edit func(*metav1.DeleteOptions)) (*corev1.Pod, error) {
		options := &metav1.DeleteOptions{}
		edit(options)
		err := pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "a"}, DeleteOptions: options})
		got, getErr := pods.Get(ctx, "a", metav1.GetOptions{})
		require.NoError(t, getErr)
		return got, err
	}
	got, err := evict(func(o *metav1.DeleteOptions) { o.DryRun = []string{metav1.DryRunAll} })
	require.NoError(t, err)
	require.Equal(t, pod.ResourceVersion, got.ResourceVersion)

	got, err = evict(func(o *metav1.DeleteOptions) { o.Preconditions = metav1.NewUIDPreconditions("another") })
	require.True(t, apierrors.IsConflict(err), err)
	require.Equal(t, pod.ResourceVersion, got.ResourceVersion)

	got, err = evict(func(o *metav1.DeleteOptions) {
		o.Preconditions = &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}
	})
	require.NoError(t, err)
	require.NotNil(t, got.DeletionTimestamp)
	i := slices.IndexFunc(got.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget
	})
	require.GreaterOrEqual(t, i, 0)
	require.Equal(t, "EvictionByEvictionAPI", got.Status.Conditions[i].Reason)
}
