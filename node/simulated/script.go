package simulated

import (
	"errors"
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

// Script is what the containers of a pod do. That of a good server is empty: it is ready at once, and runs until it is
// stopped. Init containers have none of it but the images' error: they end at once and with success, and sidecars run.
type Script struct {
	// StartDelay is how long after its admission the pod's first container starts.
	StartDelay time.Duration
	// ImagePullError, while it is not nil, is why the images cannot be pulled.
	ImagePullError error
	// ReadyAfter is how long after its start a container becomes ready.
	ReadyAfter time.Duration
	// ReadyFor and UnreadyFor are how long it then is ready and not, in turns, a second at least. With 0 it stays
	// ready; the default of UnreadyFor is ReadyFor.
	ReadyFor, UnreadyFor time.Duration
	// RunFor is how long it runs before it ends by itself; nil is for ever.
	RunFor *time.Duration
	// ExitCode is with what code it ends; without RunFor it ends at once. nil is 0.
	ExitCode *int32
	// Failures is how many of a container's first runs fail, at once or after RunFor, with ExitCode or 1; those after
	// them do not.
	Failures *int64
	// Log is the lines that each container writes at its start or, with LogEvery, one of them each time that this has
	// passed, from the first again after the last.
	Log      string
	LogEvery time.Duration
}

// script is what a pod's annotations say, changed by Options.Script.
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
