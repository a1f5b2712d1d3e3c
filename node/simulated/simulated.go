// Package simulated implements a runtime that runs no programs. Containers start after a delay, are ready at once and
// run forever, or complete where the pod is a task, for any image. Annotations on the pod change that;
// docs/node.md lists them.
//
// The runtime has no state: the state of a container is a function of its pod's script, its start time, and the present
// time. A restarted agent adopts containers by their status alone.
//
//	simulated.go    the runtime and its containers
//	script.go       the scripts of containers
//	use.go          the logs and resource usage of containers
//	behaviour.go    Nodes that stop, pause or are slow
//	annotations.go  annotations as bounded values
package simulated

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Options configure the runtime. Now is required.
type Options struct {
	// StartDelay is the time between a pod's admission and the start of its first container, unless its script has
	// another.
	StartDelay time.Duration
	// CompleteAfter, if not nil, is the lifetime of containers with the restartPolicy Never or OnFailure, which are
	// tasks rather than servers. It applies if their script has neither RunFor nor ExitCode.
	CompleteAfter *time.Duration
	// Script, if not nil, changes the script that was read from a pod's annotations. It is called often and
	// concurrently. It must return the same result for the same pod each time, and must not change the pod.
	Script func(*corev1.Pod, *Script)
	// Now returns the current time.
	Now func() time.Time
}

// Runtime implements runtime.Runtime without running programs. It has no state.
type Runtime struct{ Options }

// New returns a runtime with the given options.
func New(o Options) runtime.Runtime { return &Runtime{o} }

func (*Runtime) Version() string { return "simulated://1.0.0" }

func (s *Runtime) Delay(pod *corev1.Pod) time.Duration { return s.script(pod).StartDelay }

// SetUp assigns the offered addresses to a simulated pod, which needs no other preparation.
func (*Runtime) SetUp(_ context.Context, _ *corev1.Pod, addresses []string) (runtime.Sandbox, error) {
	return runtime.Sandbox{Addresses: addresses}, nil
}

// TearDown has no effect: a simulated pod leaves no traces. The same is true of Forget, Sweep and Close.
func (*Runtime) TearDown(context.Context, *corev1.Pod) error { return nil }
func (*Runtime) Forget(context.Context, types.UID) error     { return nil }
func (*Runtime) Sweep(context.Context, func(types.UID) bool) {}
func (*Runtime) Close()                                      {}

// Imageless implements runtime.Imageless.
func (*Runtime) Imageless() {}

// Pull accepts every image, unless the pod's script has an ImagePullError.
func (s *Runtime) Pull(_ context.Context, r runtime.PullRequest) (runtime.Image, error) {
	if err := s.script(r.Pod).ImagePullError; err != nil {
		message := err.Error()
		return runtime.Image{}, errors.New(strings.ToValidUTF8(message[:min(len(message), maxPullError)], ""))
	}
	name, _, _ := strings.Cut(r.Image, "@")
	return runtime.Image{ID: name + "@sha256:" + runtime.Digest(r.Image)}, nil
}

func (s *Runtime) Start(_ context.Context, pod *corev1.Pod, c *corev1.Container, run int32, now time.Time) (
	runtime.Container, error) {
	return s.newContainer(pod, c, runtime.ContainerID("simulated", pod.UID, c.Name, run), run, now), nil
}

func (s *Runtime) Adopt(_ context.Context, pod *corev1.Pod, c *corev1.Container, status *corev1.ContainerStatus) (
	runtime.Container, error) {
	return s.newContainer(pod, c, status.ContainerID, status.RestartCount, status.State.Running.StartedAt.Time),
		nil
}

// container is one run of a container. It is immutable, except for stopped.
type container struct {
	name    string
	readyAt time.Time
	// on and off are the alternating periods of readiness and unreadiness; on is 0 if the container stays ready.
	on, off time.Duration
	ends    bool // ends by itself, at endsAt with code
	endsAt  time.Time
	code    int32
	stopped atomic.Pointer[runtime.Exit] // set once
}

func (r *Runtime) newContainer(pod *corev1.Pod, c *corev1.Container, id string, run int32,
	started time.Time) *container {
	s := &container{name: id, readyAt: started}
	if isInit, sidecar := runtime.InitKind(pod, c); isInit && !sidecar {
		s.ends, s.endsAt = true, started
		return s
	} else if sidecar {
		return s
	}
	script := r.script(pod)
	s.readyAt = started.Add(script.ReadyAfter)
	if script.ReadyFor > 0 {
		s.on = max(script.ReadyFor, shortestTurn)
		s.off = max(cmp.Or(script.UnreadyFor, s.on), shortestTurn)
	}
	if script.RunFor != nil && *script.RunFor != Forever {
		s.ends, s.endsAt = true, started.Add(*script.RunFor)
	}
	if script.ExitCode != nil {
		s.code = *script.ExitCode
		if script.RunFor == nil {
			s.ends, s.endsAt = true, started
		}
	}
	if script.Failures != nil {
		s.fail(int64(run) < *script.Failures, started)
	}
	if !s.ends && script.RunFor == nil && r.CompleteAfter != nil && completes(pod, c) {
		s.ends, s.endsAt = true, started.Add(*r.CompleteAfter)
	}
	return s
}

// completes reports whether a regular container is not started again after it has succeeded.
func completes(pod *corev1.Pod, c *corev1.Container) bool {
	own := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	always := pod.Spec.RestartPolicy == corev1.RestartPolicyAlways || pod.Spec.RestartPolicy == ""
	return !own && !always
}

// fail adapts the exit of a run to Script.Failures: this is true for one of the first runs, which fail.
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
	switch stopped := s.stopped.Load(); {
	case stopped != nil:
		return runtime.State{Exit: stopped}
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

// Stop ends a server like a well-behaved process on SIGTERM: with code 0. A container that would have ended by itself
// was interrupted and exits with 143, which shells report for SIGTERM, so that a Job does not count it as completed.
func (s *container) Stop(now time.Time, _ time.Duration) {
	exit := &runtime.Exit{At: now}
	if s.ends {
		exit.Code = 143
	}
	s.stopped.CompareAndSwap(nil, exit) // the first call counts
}

func (*container) Resize(context.Context, *corev1.Container) error { return nil }
