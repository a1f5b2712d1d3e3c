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

// replicator has the operations of a ReplicaSet or a ReplicationController that the tests use.
type replicator struct {
	controller string
	make       func(c *controllertest.Cluster, n int32)
	resize     func(c *controllertest.Cluster, n int32) error
	// status returns whether the controller has observed the last change, and the counts of pods.
	status func(c *controllertest.Cluster) (observed bool, total, ready, available int32)
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

// TestReplicas_KeepTheirBoundsOnARandomWalk scales between two sizes before the previous scaling has completed. There
// are never more pods than the larger size, and never fewer ready ones than the smaller, because pods that are not
// ready are deleted first.
func TestReplicas_KeepTheirBoundsOnARandomWalk(t *testing.T) {
	const minimum, maximum = 4, 9
	for kind, r := range replicators {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := controllertest.NewWalk(controllertest.NewClocked(t, 2, r.controller))
			size := int32(minimum)
			r.make(w.Cluster, size)
			complete := func() bool {
				observed, total, ready, available := r.status(w.Cluster)
				return observed && total == size && ready == size && available == size
			}
			w.Reaches("complete", complete)
			w.Guard(func(pods []*corev1.Pod) string {
				switch ready := controllertest.CountReady(pods); {
				case len(pods) > maximum:
					return fmt.Sprintf("%d pods are more than %d", len(pods), maximum)
				case ready < minimum:
					return fmt.Sprintf("%d ready pods are fewer than %d", ready, minimum)
				}
				return ""
			})
			w.Walk(20, func(string) {
				size = int32(minimum + w.Random.IntN(maximum-minimum+1))
				require.NoError(t, r.resize(w.Cluster, size))
			}, complete)
			w.Reaches("complete in the end", complete)
			w.RequireKept()
		})
	}
}

// TestReplicas_ConvergeAfterAStorm also changes labels, so that pods are released and adopted.
func TestReplicas_ConvergeAfterAStorm(t *testing.T) {
	for kind, r := range replicators {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := controllertest.NewWalk(controllertest.NewClocked(t, 2, r.controller))
			r.make(w.Cluster, 5)
			relabel := func(before, after string) {
				pods := labelled(w.Cluster, before)
				if len(pods) == 0 {
					return
				}
				patch := fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, after)
				_, _ = w.Client.CoreV1().Pods("default").Patch(w.Context(), pods[w.Random.IntN(len(pods))].Name,
					types.MergePatchType, patch, metav1.PatchOptions{})
			}
			w.Storm(40,
				func() { require.NoError(t, r.resize(w.Cluster, int32(w.Random.IntN(10)))) },
				func() { relabel("web", "aside") },
				func() { relabel("aside", "web") },
			)
			require.NoError(t, r.resize(w.Cluster, 4))
			w.Passing(100*time.Millisecond, "it controls four available pods", func() bool {
				observed, total, _, available := r.status(w.Cluster)
				web := labelled(w.Cluster, "web")
				return observed && total == 4 && available == 4 && len(web) == 4 &&
					!slices.ContainsFunc(web, func(p corev1.Pod) bool { return metav1.GetControllerOf(&p) == nil })
			})
			for _, p := range labelled(w.Cluster, "web") {
				require.Equal(t, kind, metav1.GetControllerOf(&p).Kind, p.Name)
			}
			for _, p := range labelled(w.Cluster, "aside") {
				w.Reaches(p.Name+" is released", func() bool {
					return !slices.ContainsFunc(labelled(w.Cluster, "aside"), func(q corev1.Pod) bool {
						return q.Name == p.Name && metav1.GetControllerOf(&q) != nil
					})
				})
			}
		})
	}
}

// labelled returns the pods with this value of the label app that are not being deleted.
func labelled(c *controllertest.Cluster, app string) (pods []corev1.Pod) {
	list, err := c.Client.CoreV1().Pods("default").List(c.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	require.NoError(c, err)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}
