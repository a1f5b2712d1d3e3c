package controllers_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestReplicationController_KeepsItsPods(t *testing.T) {
	t.Parallel()
	c := newClocked(t, 2, "replicationcontroller", "disruption", "garbagecollector")
	rcs := c.client.CoreV1().ReplicationControllers("default")
	template := &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "old"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "orphan", Labels: template.Labels}, Spec: template.Spec}
	_, err := c.client.CoreV1().Pods("default").Create(c.ctx, orphan, metav1.CreateOptions{})
	require.NoError(t, err)
	rc, err := rcs.Create(c.ctx, &corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Name: "old"},
		Spec: corev1.ReplicationControllerSpec{Replicas: new(int32(3)), Template: template}}, metav1.CreateOptions{})
	require.NoError(t, err)
	await := func(n int32) {
		c.reaches("the status", func() bool {
			rc, err = rcs.Get(c.ctx, "old", metav1.GetOptions{})
			require.NoError(t, err)
			s := rc.Status
			return s.ObservedGeneration == rc.Generation && s.Replicas == n && s.FullyLabeledReplicas == n && s.ReadyReplicas == n && s.AvailableReplicas == n
		})
	}
	await(3)
	pods := c.pods()
	require.Len(t, pods, 3, "the orphan is one of them")
	for _, p := range pods {
		require.True(t, metav1.IsControlledBy(&p, rc), p.Name)
		require.Equal(t, "ReplicationController", metav1.GetControllerOf(&p).Kind)
	}
	c.reaches("the events name the kind", func() bool {
		events, err := c.client.CoreV1().Events("default").List(c.ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=ReplicationController,involvedObject.name=old,reason=SuccessfulCreate"})
		require.NoError(t, err)
		return len(events.Items) > 0
	})

	// A budget asks for the scale of a kind that it does not watch.
	one := intstr.FromInt32(1)
	c.budget("old", func(s *policyv1.PodDisruptionBudgetSpec) { s.MaxUnavailable = &one })
	c.awaitBudget("old", 3, 2, 3, 1)

	_, err = rcs.Patch(c.ctx, "old", "application/merge-patch+json", []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	await(1)
	require.NoError(t, rcs.Delete(c.ctx, "old", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}))
	c.reaches("the pods go with it", func() bool { return len(c.pods()) == 0 })
}
