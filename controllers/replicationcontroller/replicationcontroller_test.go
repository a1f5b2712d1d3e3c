package replicationcontroller_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestReplicationController_RunsItsPods(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClocked(t, 2, "replicationcontroller", "disruption", "garbagecollector")
	rcs := c.Client.CoreV1().ReplicationControllers("default")
	template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "old"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "orphan", Labels: template.Labels}, Spec: template.Spec}
	_, err := c.Client.CoreV1().Pods("default").Create(c.Context(), orphan, metav1.CreateOptions{})
	require.NoError(t, err)
	rc, err := rcs.Create(c.Context(), &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "old"},
		Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(3)), Template: template}}, metav1.CreateOptions{})
	require.NoError(t, err)
	await := func(n int32) {
		c.Reaches("the status", func() bool {
			rc, err = rcs.Get(c.Context(), "old", metav1.GetOptions{})
			require.NoError(t, err)
			s := rc.Status
			return s.ObservedGeneration == rc.Generation && s.Replicas == n && s.FullyLabeledReplicas == n &&
				s.ReadyReplicas == n && s.AvailableReplicas == n
		})
	}
	await(3)
	pods := c.Pods()
	require.Len(t, pods, 3, "the orphan is adopted")
	for _, p := range pods {
		require.True(t, metav1.IsControlledBy(&p, rc), p.Name)
		require.Equal(t, "ReplicationController", metav1.GetControllerOf(&p).Kind)
	}
	c.Reaches("the events name the kind", func() bool {
		events, err := c.Client.CoreV1().Events("default").List(c.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.kind=ReplicationController,involvedObject.name=old,reason=SuccessfulCreate"})
		require.NoError(t, err)
		return len(events.Items) > 0
	})

	// A PodDisruptionBudget reads the scale of a kind that it does not watch.
	budgets := c.Client.PolicyV1().PodDisruptionBudgets("default")
	_, err = budgets.Create(c.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "old"},
		Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: template.Labels}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.Reaches("the budget counts three, of which two must stay", func() bool {
		b, err := budgets.Get(c.Context(), "old", metav1.GetOptions{})
		require.NoError(t, err)
		s := b.Status
		return s.ObservedGeneration == b.Generation && s.CurrentHealthy == 3 && s.DesiredHealthy == 2 &&
			s.ExpectedPods == 3 && s.DisruptionsAllowed == 1
	})

	_, err = rcs.Patch(c.Context(), "old", "application/merge-patch+json", []byte(`{"spec":{"replicas":1}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	await(1)
	require.NoError(t,
		rcs.Delete(c.Context(), "old", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}))
	c.Reaches("its pods are deleted with it", func() bool { return len(c.Pods()) == 0 })
}
