package node

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Annotations on a Node by which its simulation goes wrong.
const (
	annotationStopped = "sim.coxswain.dev/stopped"
	annotationPaused  = "sim.coxswain.dev/paused"
	annotationSlow    = "sim.coxswain.dev/slow"
	// annotationMemory, annotationDisk and annotationPIDs of a Node are what it takes itself, besides its pods.
)

// behaviour is how a simulated node differs from a good one.
type behaviour struct {
	stopped bool          // as if it had no power: no heartbeats, nothing happens to its pods, nobody answers
	paused  bool          // heartbeats go on, nothing happens to pods
	slow    time.Duration // how long it takes to notice what is new with a pod
	taken   usage         // by the node itself
}

// acts is how the node behaves now.
func (n *simNode) acts() behaviour {
	if b := n.behaviour.Load(); b != nil {
		return *b
	}
	return behaviour{}
}

// behave takes note of the Node's annotations, and reports whether they say something new.
func (n *simNode) behave(node *corev1.Node) bool {
	b := behaviour{}
	b.stopped, _ = strconv.ParseBool(node.Annotations[annotationStopped])
	b.paused, _ = strconv.ParseBool(node.Annotations[annotationPaused])
	b.slow, _ = annotatedDuration(node.Annotations, annotationSlow, 0, longestSlow)
	b.taken = annotatedUse(node.Annotations, usage{})
	if n.acts() == b {
		return false
	}
	n.behaviour.Store(&b)
	return true
}
