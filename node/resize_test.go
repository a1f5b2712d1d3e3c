package node

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func amounts(cpu, memory string) corev1.ResourceRequirements {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory)}
	return corev1.ResourceRequirements{Requests: list, Limits: list}
}

func sizedPod(name, cpu, memory string) *corev1.Pod {
	pod := boundPod(name, "node-0")
	pod.Spec.Containers[0].Resources = amounts(cpu, memory)
	return pod
}

// resize changes the resources of a pod's spec, as the subresource resize does.
func (c *cluster) resize(name, cpu, memory string) {
	c.t.Helper()
	pod := c.pod(name).DeepCopy()
	pod.Spec.Containers[0].Resources = amounts(cpu, memory)
	pod.Generation++
	_, err := c.CoreV1().Pods("default").Update(context.Background(), pod, metav1.UpdateOptions{})
	require.NoError(c.t, err)
}

// has reports whether a pod's container has its allocated resources, in the given amount.
func (c *cluster) has(name, cpu string) bool {
	statuses := c.pod(name).Status.ContainerStatuses
	if len(statuses) != 1 || statuses[0].Resources == nil {
		return false
	}
	want := resource.MustParse(cpu)
	s := &statuses[0]
	return s.AllocatedResources.Cpu().Equal(want) && s.Resources.Limits.Cpu().Equal(want) &&
		s.Resources.Requests.Cpu().Equal(want)
}

func (c *cluster) condition(name string, t corev1.PodConditionType) corev1.PodCondition {
	if found := findCondition(c.pod(name).Status.Conditions, t); found != nil {
		return *found
	}
	return corev1.PodCondition{}
}

var fourCores = Options{Capacity: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}}

func TestResize_ChangesARunningContainer(t *testing.T) {
	t.Parallel()
	c := startCluster(t, fourCores)
	c.create(sizedPod("p", "1", "1Gi"))
	c.later(time.Second, "it is ready", func() bool { return ready(c.pod("p")) && c.has("p", "1") })
	c.resize("p", "2", "1Gi")
	c.eventually("it has two cores", func() bool {
		return c.has("p", "2") && c.pod("p").Status.ObservedGeneration == 2
	})
	status := c.pod("p").Status
	require.Zero(t, status.ContainerStatuses[0].RestartCount)
	require.Nil(t, findCondition(status.Conditions, corev1.PodResizePending))
	c.eventually("nothing is in progress", func() bool {
		return c.condition("p", corev1.PodResizeInProgress).Type == ""
	})
	c.create(sizedPod("large", "3", "1Gi"))
	c.later(time.Second, "the room is taken", func() bool { return c.pod("large").Status.Reason == "OutOfcpu" })
}

func TestResize_IsDeferredOrInfeasible(t *testing.T) {
	t.Parallel()
	c := startCluster(t, fourCores)
	c.create(sizedPod("p", "1", "1Gi"))
	c.create(sizedPod("other", "2", "1Gi"))
	c.later(time.Second, "they are ready", func() bool { return ready(c.pod("p")) && ready(c.pod("other")) })

	c.resize("p", "5", "1Gi")
	c.eventually("it never fits", func() bool {
		return c.condition("p", corev1.PodResizePending).Reason == corev1.PodReasonInfeasible
	})
	pending := c.condition("p", corev1.PodResizePending)
	require.Equal(t, "Node didn't have enough capacity: cpu, requested: 5000, capacity: 4000", pending.Message)
	require.EqualValues(t, 2, pending.ObservedGeneration)
	require.True(t, c.has("p", "1"))

	c.resize("p", "3", "1Gi")
	c.eventually("it does not fit now", func() bool {
		return c.condition("p", corev1.PodResizePending).Reason == corev1.PodReasonDeferred
	})
	pending = c.condition("p", corev1.PodResizePending)
	require.Equal(t, "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000",
		pending.Message)
	require.EqualValues(t, 3, pending.ObservedGeneration)

	c.stop()
	c.start(fourCores) // knows the allocated resources
	c.create(sizedPod("sentinel", "500m", "1Mi"))
	c.later(time.Second, "there is room for little", func() bool { return ready(c.pod("sentinel")) })
	require.True(t, c.has("p", "1"))
	require.Equal(t, corev1.PodReasonDeferred, c.condition("p", corev1.PodResizePending).Reason)

	c.resize("sentinel", "10m", "1Mi")
	c.resize("other", "900m", "1Gi") // makes room
	c.eventually("it has grown", func() bool {
		return c.has("p", "3") && c.condition("p", corev1.PodResizePending).Type == ""
	})
}

func TestResize_CompletesWhenAnotherPodEnds(t *testing.T) {
	t.Parallel()
	c := startCluster(t, fourCores)
	c.create(sizedPod("p", "1", "1Gi"))
	c.create(sizedPod("other", "2", "1Gi"))
	c.later(time.Second, "they are ready", func() bool { return ready(c.pod("p")) && ready(c.pod("other")) })
	c.resize("p", "4", "1Gi")
	c.eventually("it waits", func() bool {
		return c.condition("p", corev1.PodResizePending).Reason == corev1.PodReasonDeferred
	})
	require.NoError(t, c.CoreV1().Pods("default").Delete(context.Background(), "other", metav1.DeleteOptions{}))
	c.eventually("it has all", func() bool { return c.has("p", "4") })
}

func TestResize_RestartsIfThePolicyAsksForIt(t *testing.T) {
	t.Parallel()
	c := startCluster(t, fourCores)
	pod := sizedPod("p", "1", "1Gi")
	pod.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
		{ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired},
		{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer},
	}
	pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure // which would not restart a container that succeeds
	c.create(pod)
	c.later(time.Second, "it is ready", func() bool { return ready(c.pod("p")) })
	c.resize("p", "2", "1Gi")
	c.eventually("it has two cores", func() bool { return c.has("p", "2") })
	require.Zero(t, c.pod("p").Status.ContainerStatuses[0].RestartCount)
	c.resize("p", "2", "2Gi")
	c.eventually("it was restarted, with more memory", func() bool {
		s := c.pod("p").Status.ContainerStatuses[0]
		return s.RestartCount == 1 && s.State.Running != nil &&
			s.Resources.Limits.Memory().Equal(resource.MustParse("2Gi"))
	})
	c.eventually("nothing is in progress", func() bool {
		return c.condition("p", corev1.PodResizeInProgress).Type == ""
	})
	require.EqualValues(t, 1, c.pod("p").Status.ContainerStatuses[0].RestartCount)
}
