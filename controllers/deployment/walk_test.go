package deployment_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestDeployment_KeepsItsBoundsOnARandomWalk(t *testing.T) {
	t.Parallel()
	const n, surge, unavailable = 6, 2, 1
	w := controllertest.NewWalk(controllertest.NewClocked(t, 2, "deployment", "replicaset"))
	w.Deploy("web", n, func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate.MaxSurge, d.Spec.Strategy.RollingUpdate.MaxUnavailable = new(
			intstr.FromInt32(surge)), new(intstr.FromInt32(unavailable))
	})
	complete := func() bool {
		d := w.Deployment("web")
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == n && s.Replicas == n &&
			s.AvailableReplicas == n
	}
	w.Reaches("complete", complete)
	w.Guard(func(pods []*corev1.Pod) string {
		switch ready := controllertest.CountReady(pods); {
		case len(pods) > n+surge:
			return fmt.Sprintf("%d pods are more than %d", len(pods), n+surge)
		case ready < n-unavailable:
			return fmt.Sprintf("%d ready pods are fewer than %d", ready, n-unavailable)
		}
		return ""
	})
	w.Walk(15, func(name string) { w.EditDeployment("web", controllertest.Image(name)) }, complete)
	w.EditDeployment("web", controllertest.Image("last"))
	w.Reaches("complete at last", complete)
	w.RequireKept()
	for _, p := range w.Pods() {
		require.Equal(t, p.DeletionTimestamp == nil, p.Spec.Containers[0].Image == "last", p.Name)
	}
}

func TestDeployment_ConvergesAfterConflictsAndFaults(t *testing.T) {
	t.Parallel()
	w := controllertest.NewWalk(controllertest.NewClocked(t, 2, "deployment", "replicaset", "garbagecollector"))
	w.Deploy("web", 5, nil)
	w.Storm(40,
		func() {
			w.EditDeployment("web", controllertest.Image([]string{"one", "two", "three"}[w.Random.IntN(3)]))
		},
		func() { w.EditDeployment("web", controllertest.Scale(int32(w.Random.IntN(9)))) },
		func() { w.EditDeployment("web", func(d *appsv1.Deployment) { d.Spec.Paused = !d.Spec.Paused }) },
		func() { // a conflicting writer
			for _, rs := range w.ReplicaSets() {
				patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, w.Random.IntN(4))
				_, _ = w.Client.AppsV1().ReplicaSets("default").Patch(w.Context(), rs.Name, types.MergePatchType, patch,
					metav1.PatchOptions{})
			}
		},
	)
	w.EditDeployment("web", func(d *appsv1.Deployment) { d.Spec.Paused, d.Spec.Replicas = false, new(int32(4)) })
	w.EditDeployment("web", controllertest.Image("last"))
	w.Passing(100*time.Millisecond, "four of the last", func() bool {
		d := w.Deployment("web")
		s := d.Status
		if s.ObservedGeneration != d.Generation || s.UpdatedReplicas != 4 || s.Replicas != 4 ||
			s.AvailableReplicas != 4 {
			return false
		}
		pods := w.Pods()
		return len(pods) == 4 && !slices.ContainsFunc(pods, func(p corev1.Pod) bool {
			return p.Spec.Containers[0].Image != "last"
		})
	})
	// A ReplicaSet that another client has just scaled up may not have any of its new pods yet.
	w.Passing(100*time.Millisecond, "the other ReplicaSets are empty", func() bool {
		return !slices.ContainsFunc(w.ReplicaSets(), func(rs appsv1.ReplicaSet) bool {
			want := int32(0)
			if rs.Spec.Template.Spec.Containers[0].Image == "last" {
				want = 4
			}
			return *rs.Spec.Replicas != want
		})
	})
}

// BenchmarkDeployment brings one Deployment of 1,000 replicas from creation to ready, including the API server
// and a simple node.
func BenchmarkDeployment(b *testing.B) {
	c := newCluster(b, controllertest.Always)
	for b.Loop() {
		c.Deploy("web", 1000, nil)
		c.AwaitRollout("web")
		b.StopTimer()
		require.NoError(b, c.Client.AppsV1().Deployments("default").Delete(c.Context(), "web", metav1.DeleteOptions{}))
		c.Eventually("gone", func() bool { return len(c.Pods()) == 0 && len(c.ReplicaSets()) == 0 })
		b.StartTimer()
	}
}
