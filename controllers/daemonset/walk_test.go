package daemonset_test

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

func TestDaemonSet_KeepsItsBoundsOnARandomWalk(t *testing.T) {
	t.Parallel()
	const n = 3
	c := newDaemons(t)
	w := controllertest.NewWalk(c.Clocked)
	c.daemon("agent", nil)
	complete := func() bool {
		d := c.daemonSet("agent")
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.UpdatedNumberScheduled == n && s.NumberAvailable == n
	}
	w.Reaches("complete", complete)
	w.Guard(func(pods []*corev1.Pod) string {
		nodes := map[string]int{}
		for _, p := range pods {
			nodes[placeOf(p)]++
			if nodes[placeOf(p)] > 1 {
				return "two pods on " + placeOf(p)
			}
		}
		if ready := controllertest.CountReady(pods); ready < n-1 {
			return fmt.Sprintf("%d ready pods are fewer than %d", ready, n-1)
		}
		return ""
	})
	w.Walk(12, func(name string) { c.editDaemon("agent", agentImage(name)) }, complete)
	c.editDaemon("agent", agentImage("last"))
	w.Reaches("complete at last", complete)
	w.RequireKept()
	require.Equal(t, []string{"node-0=last", "node-1=last", "node-2=last"}, c.places())
}

func agentImage(image string) func(*appsv1.DaemonSet) {
	return func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = image }
}

// placeOf returns the Node of a set's pod, also before it is bound.
func placeOf(p *corev1.Pod) string {
	terms := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return terms[0].MatchFields[0].Values[0]
}

func TestDaemonSet_ConvergesAfterConflictsAndFaults(t *testing.T) {
	t.Parallel()
	c := newDaemons(t)
	w := controllertest.NewWalk(c.Clocked)
	c.daemon("agent", nil)
	w.Storm(30,
		func() { c.editDaemon("agent", agentImage([]string{"one", "two", "three"}[w.Random.IntN(3)])) },
		func() {
			name := fmt.Sprintf("node-%d", w.Random.IntN(3))
			c.editNode(name, func(n *corev1.Node) {
				n.Labels["disk"] = []string{"ssd", "none"}[w.Random.IntN(2)]
			})
		},
		func() {
			c.editDaemon("agent", func(d *appsv1.DaemonSet) {
				d.Spec.Template.Spec.NodeSelector = []map[string]string{nil, {"disk": "ssd"}}[w.Random.IntN(2)]
			})
		},
	)
	c.editDaemon("agent", func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.NodeSelector = nil })
	c.editDaemon("agent", agentImage("last"))
	w.Passing(100*time.Millisecond, "one of the last on each", func() bool {
		return slices.Equal(c.places(), []string{"node-0=last", "node-1=last", "node-2=last"})
	})
	c.awaitDaemon("agent", 3)
}
