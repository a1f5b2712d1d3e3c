package simulated

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Annotations on a Node by which its simulation goes wrong.
const (
	AnnotationStopped = "sim.coxswain.dev/stopped"
	AnnotationPaused  = "sim.coxswain.dev/paused"
	AnnotationSlow    = "sim.coxswain.dev/slow"
	// annotationMemory, annotationDisk and annotationPIDs of a Node are what it takes itself, besides its pods.
)

// Behaviour is how a simulated node differs from a good one.
type Behaviour struct {
	Stopped bool          // as if it had no power: no heartbeats, nothing happens to its pods, nobody answers
	Paused  bool          // heartbeats go on, nothing happens to pods
	Slow    time.Duration // how long it takes to notice what is new with a pod
	Taken   runtime.Usage // by the node itself
}

// BehaviourOf is how a Node's annotations say that it behaves.
func BehaviourOf(node *corev1.Node) Behaviour {
	b := Behaviour{}
	b.Stopped, _ = strconv.ParseBool(node.Annotations[AnnotationStopped])
	b.Paused, _ = strconv.ParseBool(node.Annotations[AnnotationPaused])
	b.Slow, _ = annotatedDuration(node.Annotations, AnnotationSlow, 0, longestSlow)
	b.Taken = annotatedUse(node.Annotations, runtime.Usage{})
	return b
}
