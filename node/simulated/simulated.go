// Package simulated is the runtime in which no program runs. Containers start after a delay, are ready at once and run
// for ever, whatever their image. Annotations on the pod change that; docs/node.md lists them.
//
// The runtime has no state: what a container does is a function of its pod's annotations, of when it started, and of
// the time. A restarted agent takes up containers by their status alone.
//
//	simulated.go    the runtime and its containers
//	use.go          what containers log, and what they take of the node
//	behaviour.go    Nodes that stop, pause or are slow
//	annotations.go  annotations as bounded values
package simulated

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/runtime"
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

// Runtime is the runtime in which no program runs. It has no state: what a container does is a
// function of its pod's annotations, when it started, and the time.
type Runtime struct {
	startDelay time.Duration
	now        func() time.Time
}

// New is a runtime that starts a pod's first container so long after the pod was admitted.
func New(startDelay time.Duration, now func() time.Time) runtime.Runtime {
	return &Runtime{startDelay: startDelay, now: now}
}

func (*Runtime) Version() string { return "simulated://1.0.0" }

func (s *Runtime) Delay(*corev1.Pod) time.Duration { return s.startDelay }

// A simulated pod needs nothing and leaves nothing.
func (*Runtime) SetUp(context.Context, *corev1.Pod, string) (time.Duration, error) { return 0, nil }
func (*Runtime) TearDown(*corev1.Pod) error                                        { return nil }
func (*Runtime) Forget(types.UID) error                                            { return nil }
func (*Runtime) Sweep(func(types.UID) bool)                                        {}
func (*Runtime) Close()                                                            {}

func (*Runtime) Pull(pod *corev1.Pod, c *corev1.Container) (string, error) {
	if message, ok := pod.Annotations[AnnotationImagePullError]; ok {
		return "", errors.New(strings.ToValidUTF8(message[:min(len(message), maxPullError)], ""))
	}
	name, _, _ := strings.Cut(c.Image, "@")
	return name + "@sha256:" + runtime.Digest(c.Image), nil
}

func (s *Runtime) Start(pod *corev1.Pod, c *corev1.Container, run int32, now time.Time) (runtime.Container, error) {
	return newContainer(pod, c, runtime.ContainerID("simulated", pod.UID, c.Name, run), run, now), nil
}

func (s *Runtime) Adopt(pod *corev1.Pod, c *corev1.Container, status *corev1.ContainerStatus) (
	runtime.Container, error) {
	return newContainer(pod, c, status.ContainerID, status.RestartCount, status.State.Running.StartedAt.Time),
		nil
}

// container is immutable but for stop.
type container struct {
	name    string
	readyAt time.Time
	// on and off are for how long it is ready and not, in turns; on is 0 where it stays ready.
	on, off time.Duration
	ends    bool // by itself
	endsAt  time.Time
	code    int32
	stopped *runtime.Exit
}

func newContainer(pod *corev1.Pod, c *corev1.Container, id string, run int32,
	started time.Time) *container {
	s := &container{name: id, readyAt: started}
	if isInit, sidecar := runtime.InitKind(pod, c); isInit && !sidecar {
		s.ends, s.endsAt = true, started
		return s
	} else if sidecar {
		return s
	}
	said := pod.Annotations
	if d, ok := annotatedDuration(said, AnnotationReadyAfter, 0, longest); ok {
		s.readyAt = started.Add(d)
	}
	if on, ok := annotatedDuration(said, AnnotationReadyFor, shortestTurn, longest); ok {
		s.on, s.off = on, on
		if off, ok := annotatedDuration(said, AnnotationUnreadyFor, shortestTurn, longest); ok {
			s.off = off
		}
	}
	if d, ok := annotatedDuration(said, AnnotationRunFor, 0, longest); ok {
		s.ends, s.endsAt = true, started.Add(d)
	}
	if code, ok := annotatedNumber(said, AnnotationExitCode, maxExitCode); ok {
		s.code = int32(code)
		if !s.ends {
			s.ends, s.endsAt = true, started
		}
	}
	if failures, ok := annotatedNumber(said, AnnotationFailures, maxFailures); ok {
		s.fail(int64(run) < failures, started)
	}
	return s
}

// fail makes this one of the runs that fail, or one after them, which do not.
func (s *container) fail(this bool, started time.Time) {
	switch {
	case !this:
		s.code = 0
	case s.code == 0:
		s.code = 1
	}
	if this && !s.ends {
		s.ends, s.endsAt = true, started
	}
}

func (s *container) ID() string { return s.name }

func (s *container) State(now time.Time) runtime.State {
	switch {
	case s.stopped != nil:
		return runtime.State{Exit: s.stopped}
	case s.ends && !now.Before(s.endsAt):
		return runtime.State{Exit: &runtime.Exit{Code: s.code, At: s.endsAt}}
	}
	state := runtime.State{Ready: !now.Before(s.readyAt)}
	switch {
	case !state.Ready:
		state.Next = s.readyAt
	case s.on > 0:
		turn := now.Sub(s.readyAt) % (s.on + s.off)
		state.Ready = turn < s.on
		state.Next = now.Add(s.on - turn)
		if !state.Ready {
			state.Next = now.Add(s.on + s.off - turn)
		}
	}
	if s.ends && (state.Next.IsZero() || s.endsAt.Before(state.Next)) {
		state.Next = s.endsAt
	}
	return state
}

// Stop ends a server as a good one ends on SIGTERM, with 0. Work that was cut short did not succeed: 143
// is what the shell reports for SIGTERM, and a Job must not count it as done.
func (s *container) Stop(now time.Time, _ time.Duration) {
	if s.stopped != nil {
		return
	}
	s.stopped = &runtime.Exit{At: now}
	if s.ends {
		s.stopped.Code = 143
	}
}

func (*container) Resize(*corev1.Container) error { return nil }
