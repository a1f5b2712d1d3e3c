package controllers_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

func TestDaemonSet_KeepsItsBoundsOnARandomWalk(t *testing.T) {
	t.Parallel()
	const n = 3
	w := newRolloutWalk(newDaemons(t))
	w.daemon("agent", nil)
	complete := func() bool {
		d := w.daemonSet("agent")
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.UpdatedNumberScheduled == n && s.NumberAvailable == n
	}
	w.reaches("complete", complete)
	w.guard(func(pods []*corev1.Pod) string {
		nodes := map[string]int{}
		for _, p := range pods {
			nodes[placeOf(p)]++
			if nodes[placeOf(p)] > 1 {
				return "two pods on " + placeOf(p)
			}
		}
		if ready := readyOf(pods); ready < n-1 {
			return fmt.Sprintf("%d ready pods are fewer than %d", ready, n-1)
		}
		return ""
	})
	w.walk(12, func(name string) { w.editDaemon("agent", agentImage(name)) }, complete)
	w.editDaemon("agent", agentImage("last"))
	w.reaches("complete at last", complete)
	w.whole()
	require.Equal(t, []string{"node-0=last", "node-1=last", "node-2=last"}, w.places())
}

func agentImage(image string) func(*appsv1.DaemonSet) {
	return func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = image }
}

// placeOf is the Node that a set's pod is meant for, also before it is bound.
func placeOf(p *corev1.Pod) string {
	terms := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return terms[0].MatchFields[0].Values[0]
}

func TestDaemonSet_EndsAsItShouldAfterAStorm(t *testing.T) {
	t.Parallel()
	w := newRolloutWalk(newDaemons(t))
	w.daemon("agent", nil)
	w.storm(30,
		func() { w.editDaemon("agent", agentImage([]string{"one", "two", "three"}[w.random.IntN(3)])) },
		func() {
			name := fmt.Sprintf("node-%d", w.random.IntN(3))
			w.editNode(name, func(n *corev1.Node) {
				n.Labels["disk"] = []string{"ssd", "none"}[w.random.IntN(2)]
			})
		},
		func() {
			w.editDaemon("agent", func(d *appsv1.DaemonSet) {
				d.Spec.Template.Spec.NodeSelector = []map[string]string{nil, {"disk": "ssd"}}[w.random.IntN(2)]
			})
		},
	)
	w.editDaemon("agent", func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.NodeSelector = nil })
	w.editDaemon("agent", agentImage("last"))
	w.passing(100*time.Millisecond, "one of the last on each", func() bool {
		return slices.Equal(w.places(), []string{"node-0=last", "node-1=last", "node-2=last"})
	})
	w.awaitDaemon("agent", 3)
}
