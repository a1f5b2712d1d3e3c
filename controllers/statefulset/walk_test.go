package statefulset_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestStatefulSet_KeepsItsBoundsOnARandomWalk(t *testing.T) {
	t.Parallel()
	const n = 4
	c := newSets(t)
	w := controllertest.NewWalk(c.Clocked)
	w.CreateStatefulSet("db", n, nil)
	complete := func() bool {
		s := c.statefulSet("db")
		return s.Status.ObservedGeneration == s.Generation && s.Status.ReadyReplicas == n &&
			s.Status.UpdatedReplicas == n &&
			s.Status.CurrentRevision == s.Status.UpdateRevision
	}
	w.Reaches("complete", complete)
	w.Guard(func(pods []*corev1.Pod) string {
		switch ready := controllertest.CountReady(pods); {
		case len(pods) > n:
			return fmt.Sprintf("%d pods have %d ordinals", len(pods), n)
		case ready < n-1: // one may be unavailable
			return fmt.Sprintf("%d ready pods are fewer than %d", ready, n-1)
		}
		return ""
	})
	w.Walk(12, func(name string) { c.editSet("db", setImage(name)) }, complete)
	c.editSet("db", setImage("last"))
	w.Reaches("complete in the end", complete)
	w.RequireKept()
	require.Equal(t, []string{"db-0=last", "db-1=last", "db-2=last", "db-3=last"}, c.images())
}

func TestStatefulSet_ConvergesAfterAStorm(t *testing.T) {
	t.Parallel()
	c := newSets(t)
	w := controllertest.NewWalk(c.Clocked)
	w.CreateStatefulSet("db", 3, nil)
	w.Storm(30,
		func() { c.editSet("db", setImage([]string{"one", "two", "three"}[w.Random.IntN(3)])) },
		func() {
			n := int32(w.Random.IntN(6))
			c.editSet("db", func(s *appsv1.StatefulSet) { s.Spec.Replicas = &n })
		},
		func() {
			n := int32(w.Random.IntN(4))
			c.editSet("db", func(s *appsv1.StatefulSet) {
				s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &n}
			})
		},
	)
	c.editSet("db", func(s *appsv1.StatefulSet) {
		s.Spec.Replicas, s.Spec.UpdateStrategy.RollingUpdate = new(int32(3)),
			&appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(0))}
	})
	c.editSet("db", setImage("last"))
	w.Passing(100*time.Millisecond, "three pods of the last image", func() bool {
		return slices.Equal(c.images(), []string{"db-0=last", "db-1=last", "db-2=last"})
	})
	c.awaitSet("db", 3)
}
