package simulated

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Annotations on a Node that make its simulation misbehave.
const (
	AnnotationStopped = "sim.coxswain.dev/stopped"
	AnnotationPaused  = "sim.coxswain.dev/paused"
	AnnotationSlow    = "sim.coxswain.dev/slow"
	// AnnotationMemory, AnnotationDisk and AnnotationPIDs of a Node are the node's own usage, besides its pods.
)

// Behaviour describes how a simulated node deviates from a healthy one.
type Behaviour struct {
	Stopped bool          // as if powered off: no heartbeats, pods do not change, no endpoint answers
	Paused  bool          // heartbeats continue, pods do not change
	Slow    time.Duration // delay until the node notices a change of a pod
	Taken   runtime.Usage // the node's own usage
}

// BehaviourOf reads a node's behaviour from its annotations.
func BehaviourOf(node *corev1.Node) Behaviour {
	b := Behaviour{}
	b.Stopped, _ = strconv.ParseBool(node.Annotations[AnnotationStopped])
	b.Paused, _ = strconv.ParseBool(node.Annotations[AnnotationPaused])
	b.Slow, _ = annotatedDuration(node.Annotations, AnnotationSlow, 0, longestSlow)
	b.Taken = annotatedUse(node.Annotations, runtime.Usage{})
	return b
}
