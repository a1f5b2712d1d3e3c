package controllers_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// replicator is what a ReplicaSet and a ReplicationController have in common.
type replicator struct {
	controller string
	make       func(c *cluster, n int32)
	resize     func(c *cluster, n int32) error
	// status is whether the last change was seen, and how many pods there are, ready and available.
	status func(c *cluster) (seen bool, total, ready, available int32)
}

var replicators = map[string]replicator{
	"ReplicaSet": {
		controller: "replicaset",
		make:       func(c *cluster, n int32) { c.replicate("web", n, nil) },
		resize: func(c *cluster, n int32) error {
			_, err := c.client.AppsV1().ReplicaSets("default").Patch(c.ctx, "web", types.MergePatchType, replicas(n), metav1.PatchOptions{})
			return err
		},
		status: func(c *cluster) (bool, int32, int32, int32) {
			rs, err := c.client.AppsV1().ReplicaSets("default").Get(c.ctx, "web", metav1.GetOptions{})
			require.NoError(c, err)
			return rs.Status.ObservedGeneration == rs.Generation, rs.Status.Replicas, rs.Status.ReadyReplicas, rs.Status.AvailableReplicas
		},
	},
	"ReplicationController": {
		controller: "replicationcontroller",
		make: func(c *cluster, n int32) {
			_, err := c.client.CoreV1().ReplicationControllers("default").Create(c.ctx, &corev1.ReplicationController{
				ObjectMeta: metav1.ObjectMeta{Name: "web"},
				Spec: corev1.ReplicationControllerSpec{Replicas: &n, Template: &corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "web"}}},
				}},
			}, metav1.CreateOptions{})
			require.NoError(c, err)
		},
		resize: func(c *cluster, n int32) error {
			_, err := c.client.CoreV1().ReplicationControllers("default").Patch(c.ctx, "web", types.MergePatchType, replicas(n), metav1.PatchOptions{})
			return err
		},
		status: func(c *cluster) (bool, int32, int32, int32) {
			rc, err := c.client.CoreV1().ReplicationControllers("default").Get(c.ctx, "web", metav1.GetOptions{})
			require.NoError(c, err)
			return rc.Status.ObservedGeneration == rc.Generation, rc.Status.Replicas, rc.Status.ReadyReplicas, rc.Status.AvailableReplicas
		},
	},
}

func replicas(n int32) []byte { return fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n) }

// TestReplicas_KeepTheirBoundsOnARandomWalk scales between two sizes before the last scaling has ended: there are never more
// pods than the larger, and never fewer ready ones than the smaller, for those that are not ready go first.
func TestReplicas_KeepTheirBoundsOnARandomWalk(t *testing.T) {
	const least, most = 4, 9
	for kind, r := range replicators {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newRolloutWalk(newClocked(t, 2, r.controller))
			size := int32(least)
			r.make(w.cluster, size)
			complete := func() bool {
				seen, total, ready, available := r.status(w.cluster)
				return seen && total == size && ready == size && available == size
			}
			w.reaches("complete", complete)
			w.guard(func(pods []*corev1.Pod) string {
				switch ready := readyOf(pods); {
				case len(pods) > most:
					return fmt.Sprintf("%d pods are more than %d", len(pods), most)
				case ready < least:
					return fmt.Sprintf("%d ready pods are fewer than %d", ready, least)
				}
				return ""
			})
			w.walk(20, func(string) {
				size = int32(least + w.random.IntN(most-least+1))
				require.NoError(t, r.resize(w.cluster, size))
			}, complete)
			w.reaches("complete at last", complete)
			w.whole()
		})
	}
}

// TestReplicas_EndAsTheyShouldAfterAStorm also has pods leave and join by their labels.
func TestReplicas_EndAsTheyShouldAfterAStorm(t *testing.T) {
	for kind, r := range replicators {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newRolloutWalk(newClocked(t, 2, r.controller))
			r.make(w.cluster, 5)
			relabel := func(from, to string) {
				pods := w.labelled(from)
				if len(pods) == 0 {
					return
				}
				patch := fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, to)
				_, _ = w.client.CoreV1().Pods("default").Patch(w.ctx, pods[w.random.IntN(len(pods))].Name, types.MergePatchType, patch, metav1.PatchOptions{})
			}
			w.storm(40,
				func() { require.NoError(t, r.resize(w.cluster, int32(w.random.IntN(10)))) },
				func() { relabel("web", "aside") },
				func() { relabel("aside", "web") },
			)
			require.NoError(t, r.resize(w.cluster, 4))
			w.passing(100*time.Millisecond, "four pods", func() bool {
				seen, total, _, available := r.status(w.cluster)
				return seen && total == 4 && available == 4 && len(w.labelled("web")) == 4
			})
			for _, p := range w.labelled("web") {
				require.Equal(t, kind, metav1.GetControllerOf(&p).Kind, p.Name)
			}
			for _, p := range w.labelled("aside") {
				w.reaches(p.Name+" is let go", func() bool {
					return !slices.ContainsFunc(w.labelled("aside"), func(q corev1.Pod) bool { return q.Name == p.Name && metav1.GetControllerOf(&q) != nil })
				})
			}
		})
	}
}

// labelled are the pods with a value of the label app that were not told to end.
func (c *cluster) labelled(app string) (pods []corev1.Pod) {
	list, err := c.client.CoreV1().Pods("default").List(c.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	require.NoError(c, err)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}
