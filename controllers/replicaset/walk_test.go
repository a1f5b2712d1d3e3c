package replicaset_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

// replicator is what a ReplicaSet and a ReplicationController have in common.
type replicator struct {
	controller string
	make       func(c *controllertest.Cluster, n int32)
	resize     func(c *controllertest.Cluster, n int32) error
	// status is whether the last change was seen, and how many pods there are, ready and available.
	status func(c *controllertest.Cluster) (seen bool, total, ready, available int32)
}

var replicators = map[string]replicator{
	"ReplicaSet": {
		controller: "replicaset",
		make:       func(c *controllertest.Cluster, n int32) { c.Replicate("web", n, nil) },
		resize: func(c *controllertest.Cluster, n int32) error {
			_, err := c.Client.AppsV1().ReplicaSets("default").Patch(c.Context(), "web", types.MergePatchType, replicas(n),
				metav1.PatchOptions{})
			return err
		},
		status: func(c *controllertest.Cluster) (bool, int32, int32, int32) {
			rs, err := c.Client.AppsV1().ReplicaSets("default").Get(c.Context(), "web", metav1.GetOptions{})
			require.NoError(c, err)
			return rs.Status.ObservedGeneration == rs.Generation, rs.Status.Replicas, rs.Status.ReadyReplicas,
				rs.Status.AvailableReplicas
		},
	},
	"ReplicationController": {
		controller: "replicationcontroller",
		make: func(c *controllertest.Cluster, n int32) {
			_, err := c.Client.CoreV1().ReplicationControllers("default").Create(c.Context(), &corev1.ReplicationController{
				ObjectMeta: metav1.ObjectMeta{Name: "web"},
				Spec: corev1.ReplicationControllerSpec{Replicas: &n, Template: &corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "web"}}},
				}},
			}, metav1.CreateOptions{})
			require.NoError(c, err)
		},
		resize: func(c *controllertest.Cluster, n int32) error {
			_, err := c.Client.CoreV1().ReplicationControllers("default").Patch(c.Context(), "web", types.MergePatchType,
				replicas(n), metav1.PatchOptions{})
			return err
		},
		status: func(c *controllertest.Cluster) (bool, int32, int32, int32) {
			rc, err := c.Client.CoreV1().ReplicationControllers("default").Get(c.Context(), "web", metav1.GetOptions{})
			require.NoError(c, err)
			return rc.Status.ObservedGeneration == rc.Generation, rc.Status.Replicas, rc.Status.ReadyReplicas,
				rc.Status.AvailableReplicas
		},
	},
}

func replicas(n int32) []byte { return fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n) }

// TestReplicas_KeepTheirBoundsOnARandomWalk scales between two sizes before the last scaling has ended: there
// are never more pods than the larger, and never fewer ready ones than the smaller, for those that are not
// ready go first.
func TestReplicas_KeepTheirBoundsOnARandomWalk(t *testing.T) {
	const least, most = 4, 9
	for kind, r := range replicators {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := controllertest.NewWalk(controllertest.NewClocked(t, 2, r.controller))
			size := int32(least)
			r.make(w.Cluster, size)
			complete := func() bool {
				seen, total, ready, available := r.status(w.Cluster)
				return seen && total == size && ready == size && available == size
			}
			w.Reaches("complete", complete)
			w.Guard(func(pods []*corev1.Pod) string {
				switch ready := controllertest.CountReady(pods); {
				case len(pods) > most:
					return fmt.Sprintf("%d pods are more than %d", len(pods), most)
				case ready < least:
					return fmt.Sprintf("%d ready pods are fewer than %d", ready, least)
				}
				return ""
			})
			w.Walk(20, func(string) {
				size = int32(least + w.Random.IntN(most-least+1))
				require.NoError(t, r.resize(w.Cluster, size))
			}, complete)
			w.Reaches("complete at last", complete)
			w.RequireKept()
		})
	}
}

// TestReplicas_EndAsTheyShouldAfterAStorm also has pods leave and join by their labels.
func TestReplicas_EndAsTheyShouldAfterAStorm(t *testing.T) {
	for kind, r := range replicators {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := controllertest.NewWalk(controllertest.NewClocked(t, 2, r.controller))
			r.make(w.Cluster, 5)
			relabel := func(from, to string) {
				pods := labelled(w.Cluster, from)
				if len(pods) == 0 {
					return
				}
				patch := fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, to)
				_, _ = w.Client.CoreV1().Pods("default").Patch(w.Context(), pods[w.Random.IntN(len(pods))].Name,
					types.MergePatchType, patch, metav1.PatchOptions{})
			}
			w.Storm(40,
				func() { require.NoError(t, r.resize(w.Cluster, int32(w.Random.IntN(10)))) },
				func() { relabel("web", "aside") },
				func() { relabel("aside", "web") },
			)
			require.NoError(t, r.resize(w.Cluster, 4))
			w.Passing(100*time.Millisecond, "four pods of its own", func() bool {
				seen, total, _, available := r.status(w.Cluster)
				web := labelled(w.Cluster, "web")
				return seen && total == 4 && available == 4 && len(web) == 4 &&
					!slices.ContainsFunc(web, func(p corev1.Pod) bool { return metav1.GetControllerOf(&p) == nil })
			})
			for _, p := range labelled(w.Cluster, "web") {
				require.Equal(t, kind, metav1.GetControllerOf(&p).Kind, p.Name)
			}
			for _, p := range labelled(w.Cluster, "aside") {
				w.Reaches(p.Name+" is let go", func() bool {
					return !slices.ContainsFunc(labelled(w.Cluster, "aside"), func(q corev1.Pod) bool {
						return q.Name == p.Name && metav1.GetControllerOf(&q) != nil
					})
				})
			}
		})
	}
}

// labelled are the pods with a value of the label app that are not being deleted.
func labelled(c *controllertest.Cluster, app string) (pods []corev1.Pod) {
	list, err := c.Client.CoreV1().Pods("default").List(c.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	require.NoError(c, err)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}
