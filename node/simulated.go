package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The annotations by which a pod says how it wants to be simulated; the package comment explains them.
const (
	simulationPrefix         = "sim.coxswain.dev/"
	annotationReadyAfter     = "sim.coxswain.dev/ready-after"
	annotationRunFor         = "sim.coxswain.dev/run-for"
	annotationExitCode       = "sim.coxswain.dev/exit-code"
	annotationImagePullError = "sim.coxswain.dev/image-pull-error"
	annotationFailures       = "sim.coxswain.dev/failures"
	annotationReadyFor       = "sim.coxswain.dev/ready-for"
	annotationUnreadyFor     = "sim.coxswain.dev/unready-for"
)

// simulated is the runtime in which no program runs. It has no state: what a container does is a
// function of its pod's annotations, when it started, and the time.
type simulated struct {
	startDelay time.Duration
	now        func() time.Time
}

func (*simulated) version() string { return "simulated://1.0.0" }

func (s *simulated) prepare(*corev1.Pod) time.Duration { return s.startDelay }

// A simulated pod needs nothing and leaves nothing.
func (*simulated) setUp(context.Context, *corev1.Pod, string) (time.Duration, error) { return 0, nil }
func (*simulated) tearDown(*corev1.Pod) error                                        { return nil }
func (*simulated) forget(types.UID) error                                            { return nil }
func (*simulated) sweep(func(types.UID) bool)                                        {}

func (*simulated) pull(pod *corev1.Pod, c *corev1.Container) (string, error) {
	if message, ok := pod.Annotations[annotationImagePullError]; ok {
		return "", errors.New(strings.ToValidUTF8(message[:min(len(message), maxPullError)], ""))
	}
	name, _, _ := strings.Cut(c.Image, "@")
	return name + "@sha256:" + digest(c.Image), nil
}

func (s *simulated) start(pod *corev1.Pod, c *corev1.Container, run int32, now time.Time) (container, error) {
	id := "simulated://" + digest(string(pod.UID), c.Name, strconv.Itoa(int(run)))
	return newSimulatedContainer(pod, c, id, run, now), nil
}

func (s *simulated) adopt(pod *corev1.Pod, c *corev1.Container, status *corev1.ContainerStatus) (container, error) {
	return newSimulatedContainer(pod, c, status.ContainerID, status.RestartCount, status.State.Running.StartedAt.Time), nil
}

// simulatedContainer is immutable but for stop.
type simulatedContainer struct {
	name    string
	readyAt time.Time
	// on and off are for how long it is ready and not, in turns; on is 0 where it stays ready.
	on, off time.Duration
	ends    bool // by itself
	endsAt  time.Time
	code    int32
	stopped *containerExit
}

func newSimulatedContainer(pod *corev1.Pod, c *corev1.Container, id string, run int32, started time.Time) *simulatedContainer {
	s := &simulatedContainer{name: id, readyAt: started}
	if isInit, sidecar := initKind(pod, c); isInit && !sidecar {
		s.ends, s.endsAt = true, started
		return s
	} else if sidecar {
		return s
	}
	said := pod.Annotations
	if d, ok := annotatedDuration(said, annotationReadyAfter, 0, longestSimulated); ok {
		s.readyAt = started.Add(d)
	}
	if on, ok := annotatedDuration(said, annotationReadyFor, shortestTurn, longestSimulated); ok {
		s.on, s.off = on, on
		if off, ok := annotatedDuration(said, annotationUnreadyFor, shortestTurn, longestSimulated); ok {
			s.off = off
		}
	}
	if d, ok := annotatedDuration(said, annotationRunFor, 0, longestSimulated); ok {
		s.ends, s.endsAt = true, started.Add(d)
	}
	if code, ok := annotatedNumber(said, annotationExitCode, maxExitCode); ok {
		s.code = int32(code)
		if !s.ends {
			s.ends, s.endsAt = true, started
		}
	}
	if failures, ok := annotatedNumber(said, annotationFailures, maxFailures); ok {
		s.fail(int64(run) < failures, started)
	}
	return s
}

// fail makes this one of the runs that fail, or one after them, which do not.
func (s *simulatedContainer) fail(this bool, started time.Time) {
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

func (s *simulatedContainer) id() string { return s.name }

func (s *simulatedContainer) state(now time.Time) containerState {
	switch {
	case s.stopped != nil:
		return containerState{exit: s.stopped}
	case s.ends && !now.Before(s.endsAt):
		return containerState{exit: &containerExit{code: s.code, at: s.endsAt}}
	}
	state := containerState{ready: !now.Before(s.readyAt)}
	switch {
	case !state.ready:
		state.next = s.readyAt
	case s.on > 0:
		turn := now.Sub(s.readyAt) % (s.on + s.off)
		state.ready = turn < s.on
		state.next = now.Add(s.on - turn)
		if !state.ready {
			state.next = now.Add(s.on + s.off - turn)
		}
	}
	if s.ends && (state.next.IsZero() || s.endsAt.Before(state.next)) {
		state.next = s.endsAt
	}
	return state
}

// stop ends a server as a good one ends on SIGTERM, with 0. Work that was cut short did not succeed: 143
// is what the shell reports for SIGTERM, and a Job must not count it as done.
func (s *simulatedContainer) stop(now time.Time, _ time.Duration) {
	if s.stopped != nil {
		return
	}
	s.stopped = &containerExit{at: now}
	if s.ends {
		s.stopped.code = 143
	}
}

func (*simulatedContainer) resize(*corev1.Container) error { return nil }

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:])
}

// initKind says whether c is one of the pod's init containers, and if so whether it is a sidecar.
func initKind(pod *corev1.Pod, c *corev1.Container) (isInit, sidecar bool) {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return true, isSidecar(c)
		}
	}
	return false, false
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
