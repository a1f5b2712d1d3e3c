package scheduler_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/scheduler"
	"github.com/coxswain-dev/coxswain/scheduler/config"
	"github.com/coxswain-dev/coxswain/testenv"
)

// TestRun_AgainstAnExternalAPIServer runs the scheduler against any Kubernetes API server: pods are spread, get the
// reason why they wait, and make room for pods of higher priority. The scheduler has a unique name, and its Nodes
// have a taint that only its pods tolerate.
func TestRun_AgainstAnExternalAPIServer(t *testing.T) {
	t.Parallel()
	server, client, id := testenv.Guest(t)
	ctx := t.Context()
	_, err := client.SchedulingV1().PriorityClasses().Create(ctx,
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: id}, Value: 1000}, metav1.CreateOptions{})
	require.NoError(t, err)
	defer func() {
		after := context.WithoutCancel(ctx)
		_ = client.CoreV1().Pods(id).DeleteCollection(after, metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
			metav1.ListOptions{})
		_ = client.SchedulingV1().PriorityClasses().Delete(after, id, metav1.DeleteOptions{})
		_ = client.CoreV1().Nodes().DeleteCollection(after, metav1.DeleteOptions{},
			metav1.ListOptions{LabelSelector: "test=" + id})
	}()
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110")}
	for i := range 3 {
		n, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", id, i),
				Labels: map[string]string{"test": id, corev1.LabelHostname: fmt.Sprint(id, "-", i)}},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "test", Value: id,
				Effect: corev1.TaintEffectNoSchedule}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		n.Status.Capacity, n.Status.Allocatable = room, room
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
			Reason: "Test", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
		_, err = client.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	c, err := config.Load([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: " +
		"KubeSchedulerConfiguration\nleaderElection: {leaderElect: false}\nprofiles: [{schedulerName: " + id + "}]\n"))
	require.NoError(t, err)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- scheduler.Run(running, server, scheduler.Options{Config: c}) }()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()

	create := func(name, cpu string, change func(*corev1.PodSpec)) {
		t.Helper()
		pod := smallPod(name, cpu)
		pod.Spec.SchedulerName, pod.Spec.NodeSelector = id, map[string]string{"test": id}
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		pod.Spec.AutomountServiceAccountToken, pod.Spec.TerminationGracePeriodSeconds = new(bool), new(int64)
		change(&pod.Spec)
		_, err := client.CoreV1().Pods(id).Create(ctx, pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	eventually := func(what string, condition func() bool) {
		t.Helper()
		require.Eventually(t, condition, time.Minute, 50*time.Millisecond, what)
	}
	get := func(name string) *corev1.Pod {
		pod, err := client.CoreV1().Pods(id).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return &corev1.Pod{}
		}
		return pod
	}
	for i := range 9 {
		create(fmt.Sprintf("p%d", i), "1", func(*corev1.PodSpec) {})
	}
	on := map[string]int{}
	for i := range 9 {
		name := fmt.Sprintf("p%d", i)
		eventually(name+" has a node", func() bool { return get(name).Spec.NodeName != "" })
		on[get(name).Spec.NodeName]++
	}
	require.Len(t, on, 3)
	for name, pods := range on {
		require.Equal(t, 3, pods, name)
	}

	create("big", "8", func(*corev1.PodSpec) {})
	eventually("it is told why it waits", func() bool {
		for _, condition := range get("big").Status.Conditions {
			if condition.Type == corev1.PodScheduled {
				return condition.Status == corev1.ConditionFalse && condition.Reason == corev1.PodReasonUnschedulable &&
					strings.Contains(condition.Message, "3 Insufficient cpu")
			}
		}
		return false
	})
	eventually("an Event says so", func() bool {
		events, err := client.CoreV1().Events(id).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == "big" && e.Reason == "FailedScheduling" {
				return true
			}
		}
		return false
	})
	create("urgent", "3", func(s *corev1.PodSpec) { s.PriorityClassName = id })
	eventually("somebody makes room", func() bool { return get("urgent").Spec.NodeName != "" })
}
