// Package simulated is the runtime in which no program runs. Containers start after a delay, are ready at once and run
// for ever, whatever their image. Annotations on the pod change that; docs/node.md lists them.
//
// The runtime has no state: what a container does is a function of its pod's script, of when it started, and of the
// time. A restarted agent takes up containers by their status alone.
//
//	simulated.go    the runtime and its containers
//	script.go       what the containers of a pod do
//	use.go          what containers log, and what they take of the node
//	behaviour.go    Nodes that stop, pause or are slow
//	annotations.go  annotations as bounded values
package simulated

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Options are those of the runtime. Now is required.
type Options struct {
	// StartDelay is how long after its admission a pod's first container starts, unless its script says otherwise.
	StartDelay time.Duration
	// Script, if not nil, changes what the annotations of a pod say of its containers. It is called often, for several
	// pods at once, and always answers alike for the same pod, which it must not change.
	Script func(*corev1.Pod, *Script)
	// Now is the time.
	Now func() time.Time
}

// Runtime is the runtime in which no program runs. It has no state: what a container does is a
// function of its pod's script, when it started, and the time.
type Runtime struct{ Options }

// New returns a runtime.
func New(o Options) runtime.Runtime { return &Runtime{o} }

func (*Runtime) Version() string { return "simulated://1.0.0" }

func (s *Runtime) Delay(pod *corev1.Pod) time.Duration { return s.script(pod).StartDelay }

// SetUp gives a simulated pod the addresses that it is offered: it needs no other preparation.
func (*Runtime) SetUp(_ context.Context, _ *corev1.Pod, addresses []string) (runtime.Sandbox, error) {
	return runtime.Sandbox{Addresses: addresses}, nil
}

// A simulated pod leaves no traces.
func (*Runtime) TearDown(context.Context, *corev1.Pod) error { return nil }
func (*Runtime) Forget(context.Context, types.UID) error     { return nil }
func (*Runtime) Sweep(context.Context, func(types.UID) bool) {}
func (*Runtime) Close()                                      {}

// Imageless implements runtime.Imageless.
func (*Runtime) Imageless() {}

// Pull accepts every image, unless the pod's script has an error for it.
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
	if script.RunFor != nil {
		s.ends, s.endsAt = true, started.Add(*script.RunFor)
	}
	if script.ExitCode != nil {
		s.code = *script.ExitCode
		if !s.ends {
			s.ends, s.endsAt = true, started
		}
	}
	if script.Failures != nil {
		s.fail(int64(run) < *script.Failures, started)
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

func (*container) Resize(context.Context, *corev1.Container) error { return nil }
