package simulated

import (
	"errors"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The annotations of a pod that control its simulation; docs/node.md explains them.
const (
	AnnotationPrefix         = "sim.coxswain.dev/"
	AnnotationReadyAfter     = "sim.coxswain.dev/ready-after"
	AnnotationRunFor         = "sim.coxswain.dev/run-for"
	AnnotationExitCode       = "sim.coxswain.dev/exit-code"
	AnnotationImagePullError = "sim.coxswain.dev/image-pull-error"
	AnnotationFailures       = "sim.coxswain.dev/failures"
	AnnotationReadyFor       = "sim.coxswain.dev/ready-for"
	AnnotationUnreadyFor     = "sim.coxswain.dev/unready-for"
)

// Forever is a lifetime without an end: Script.RunFor with it overrides Options.CompleteAfter.
const Forever time.Duration = math.MaxInt64

// valueForever of the annotation run-for is Forever.
const valueForever = "forever"

// Script describes the behaviour of a pod's containers. The zero Script is a healthy server: it is ready at once and
// runs until it is stopped, unless Options.CompleteAfter ends it. Init containers follow ImagePullError only: they
// succeed at once, and sidecars run.
type Script struct {
	// StartDelay is the time between the pod's admission and the start of its first container.
	StartDelay time.Duration
	// ImagePullError, if not nil, is the error of every image pull.
	ImagePullError error
	// ReadyAfter is the time between a container's start and its readiness.
	ReadyAfter time.Duration
	// ReadyFor and UnreadyFor are the alternating periods of readiness and unreadiness that follow, each at least a
	// second. With ReadyFor 0 the container stays ready; UnreadyFor defaults to ReadyFor.
	ReadyFor, UnreadyFor time.Duration
	// RunFor is a container's lifetime: it then ends by itself. Nil is Forever, or Options.CompleteAfter where that
	// applies.
	RunFor *time.Duration
	// ExitCode is a container's exit code; nil is 0. With ExitCode but without RunFor, a container ends at once.
	ExitCode *int32
	// Failures is the number of a container's first runs that fail, at once or after RunFor, with ExitCode or 1. Later
	// runs do not fail.
	Failures *int64
	// Log holds the lines that each container writes. Without LogEvery it writes all of them at its start; with
	// LogEvery, one line per period, starting over after the last.
	Log      string
	LogEvery time.Duration
}

// script returns the script in a pod's annotations, changed by Options.Script.
func (s *Runtime) script(pod *corev1.Pod) Script {
	script := annotatedScript(pod.Annotations)
	script.StartDelay = s.StartDelay
	if s.Script != nil {
		s.Script(pod, &script)
	}
	return script
}

func annotatedScript(said map[string]string) (s Script) {
	if len(said) == 0 {
		return s
	}
	if message, ok := said[AnnotationImagePullError]; ok {
		s.ImagePullError = errors.New(message)
	}
	s.ReadyAfter, _ = annotatedDuration(said, AnnotationReadyAfter, 0, longest)
	s.ReadyFor, _ = annotatedDuration(said, AnnotationReadyFor, shortestTurn, longest)
	s.UnreadyFor, _ = annotatedDuration(said, AnnotationUnreadyFor, shortestTurn, longest)
	if d, ok := annotatedDuration(said, AnnotationRunFor, 0, longest); ok {
		s.RunFor = &d
	} else if said[AnnotationRunFor] == valueForever {
		s.RunFor = new(Forever)
	}
	if code, ok := annotatedNumber(said, AnnotationExitCode, maxExitCode); ok {
		s.ExitCode = new(int32(code))
	}
	if failures, ok := annotatedNumber(said, AnnotationFailures, maxFailures); ok {
		s.Failures = &failures
	}
	s.Log = said[AnnotationLog]
	s.LogEvery, _ = annotatedDuration(said, AnnotationLogEvery, shortestLogEvery, longest)
	return s
}
