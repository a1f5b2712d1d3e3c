package controllers_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/controllers"
)

// newClockedCluster is a cluster whose controllers' time is moved by hand.
func newClockedCluster(t *testing.T, ready func(*corev1.Pod) bool) (*cluster, *clocktesting.FakeClock) {
	c := newBare(t)
	clock := clocktesting.NewFakeClock(metav1.Now().Time)
	c.createNode()
	c.startControllers(controllers.Options{Controllers: []string{"deployment", "replicaset", "garbagecollector"}, Clock: clock})
	c.background(func(ctx context.Context) { runNode(ctx, c.client, ready) })
	return c, clock
}

func TestDeployment_MissesItsProgressDeadline(t *testing.T) {
	t.Parallel()
	c, clock := newClockedCluster(t, func(*corev1.Pod) bool { return false })
	c.deploy("web", 2, nil)
	progressing := func() appsv1.DeploymentCondition {
		return condition(c.deployment("web"), appsv1.DeploymentProgressing)
	}
	// Small steps let retries after conflicts happen; the deadline is still far away.
	c.eventually("pods are made", func() bool {
		clock.Step(10 * time.Millisecond)
		return c.deployment("web").Status.UpdatedReplicas == 2
	})
	require.Equal(t, corev1.ConditionTrue, progressing().Status)
	clock.Step(590 * time.Second)
	c.reconciled("web")
	require.Equal(t, corev1.ConditionTrue, progressing().Status)
	c.eventually("deadline", func() bool {
		clock.Step(time.Second)
		return progressing().Reason == "ProgressDeadlineExceeded"
	})
	require.Equal(t, corev1.ConditionFalse, progressing().Status)
}

// reconciled waits until the Deployment controller has looked at the Deployment once more, from
// start to end: its ReplicaSet inherits annotations at the start of a look, so that the second
// one shows the end of the first one's. Nothing that counts as progress is touched.
func (c *cluster) reconciled(name string) {
	for _, step := range []string{"first", "second"} {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/look":%q}}}`, step)
		_, err := c.client.AppsV1().Deployments("default").Patch(c.ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		require.NoError(c, err)
		c.eventually("the "+step+" look", func() bool { return c.replicaSet("one").Annotations["example.com/look"] == step })
	}
}

func TestReplicaSet_WaitsUntilPodsHaveBeenReadyForLongEnough(t *testing.T) {
	t.Parallel()
	c, clock := newClockedCluster(t, always)
	c.replicate("web", 3, func(rs *appsv1.ReplicaSet) { rs.Spec.MinReadySeconds = 3600 })
	status := func() appsv1.ReplicaSetStatus { return c.replicaSet("web").Status }
	c.eventually("ready", func() bool {
		clock.Step(10 * time.Millisecond)
		return status().ReadyReplicas == 3
	})
	require.Zero(t, status().AvailableReplicas)
	c.eventually("available", func() bool {
		clock.Step(10 * time.Minute)
		return status().AvailableReplicas == 3
	})
}
