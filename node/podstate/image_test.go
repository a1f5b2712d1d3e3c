package podstate

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

// stepped returns the actions of one step.
func stepped(p *Pod, now time.Time) []Action {
	actions, _ := p.Step(now)
	return actions
}

// pullingPod returns a pod with a container that waits for its image.
func pullingPod(t *testing.T, pod *corev1.Pod) *Pod {
	t.Helper()
	p := New(pod, "127.0.0.1", start, 0)
	require.Equal(t, []Action{Pull{&pod.Spec.Containers[0], 1}}, stepped(p, start))
	return p
}

func waiting(p *Pod) *corev1.ContainerStateWaiting {
	return p.Status(start, nil).ContainerStatuses[0].State.Waiting
}

func TestPull_StartsTheContainerWhenTheImageIsThere(t *testing.T) {
	t.Parallel()
	pod := newPod()
	p := pullingPod(t, pod)
	require.Empty(t, stepped(p, start.Add(time.Hour)), "one pull is under way")
	require.Equal(t, "ContainerCreating", waiting(p).Reason)
	require.Equal(t, corev1.PodPending, p.Phase())
	require.True(t, p.Pulled("c", 1, "sha256:1", nil, start))
	require.Equal(t, []Action{Start{&pod.Spec.Containers[0], 0}}, stepped(p, start))
	require.Empty(t, stepped(p, start))
	require.Equal(t, "ContainerCreating", waiting(p).Reason)
	require.False(t, p.Stopped(), "the container is being started")
	p.Started("c", "test://1", start)
	require.Empty(t, stepped(p, start))
	s := p.Status(start, nil).ContainerStatuses[0]
	require.NotNil(t, s.State.Running)
	require.Equal(t, "sha256:1", s.ImageID)
}

// The classes of errors, their reasons, messages and Events are the kubelet's.
func TestPull_ReportsAFailureInTheKubeletsWords(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	classified := func(r runtime.PullReason) error { return &runtime.PullError{Reason: r, Err: cause} }
	warning := func(reason, message string) Event { return Event{corev1.EventTypeWarning, reason, message} }
	for _, c := range []struct {
		err             error
		reason, message string
		event           Event
		backsOff        bool
	}{
		{cause, "ErrImagePull", "cause", warning("Failed", `Failed to pull image "nginx:1": cause`), true},
		{classified(runtime.ErrImagePull), "ErrImagePull", "cause",
			warning("Failed", `Failed to pull image "nginx:1": cause`), true},
		{classified(runtime.RegistryUnavailable), "RegistryUnavailable",
			"image pull failed for nginx:1 because the registry is unavailable: cause",
			warning("Failed", `Failed to pull image "nginx:1": cause`), true},
		{classified(runtime.SignatureValidationFailed), "SignatureValidationFailed",
			"image pull failed for nginx:1 because the signature validation failed: cause",
			warning("Failed", `Failed to pull image "nginx:1": cause`), true},
		{classified(runtime.InvalidImageName), "InvalidImageName", `Failed to apply default image tag "nginx:1": cause`,
			warning("InspectFailed", `Failed to apply default image tag "nginx:1": cause`), false},
		{classified(runtime.ImageInspectError), "ImageInspectError", `Failed to inspect image "nginx:1": cause`,
			warning("InspectFailed", `Failed to inspect image "nginx:1": cause`), false},
		{classified(runtime.ErrImageNeverPull), "ErrImageNeverPull",
			`Container image "nginx:1" is not present with pull policy of Never`,
			warning("ErrImageNeverPull", `Container image "nginx:1" is not present with pull policy of Never`), false},
	} {
		p := pullingPod(t, newPod())
		require.True(t, p.Pulled("c", 1, "", c.err, start))
		require.Empty(t, stepped(p, start))
		require.Equal(t, corev1.ContainerStateWaiting{Reason: c.reason, Message: c.message}, *waiting(p))
		require.Equal(t, []Event{c.event, warning("Failed", "Error: "+c.reason)}, p.TakeEvents())
		require.Empty(t, stepped(p, start.Add(backOffAfter)))
		if !c.backsOff {
			require.Equal(t, c.reason, waiting(p).Reason)
			require.Empty(t, p.TakeEvents())
			continue
		}
		require.Equal(t, corev1.ContainerStateWaiting{Reason: "ImagePullBackOff",
			Message: `Back-off pulling image "nginx:1": ` + c.reason + ": " + c.message}, *waiting(p))
		require.Equal(t, []Event{{corev1.EventTypeNormal, "BackOff", `Back-off pulling image "nginx:1"`},
			warning("Failed", "Error: ImagePullBackOff")}, p.TakeEvents())
		require.Empty(t, stepped(p, start.Add(5*time.Second)))
		require.Empty(t, p.TakeEvents(), "once")
	}
}

func TestPull_BacksOffUpToFiveMinutes(t *testing.T) {
	t.Parallel()
	p := pullingPod(t, newPod())
	now := start
	for i, seconds := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		require.True(t, p.Pulled("c", i+1, "", errors.New("no such image"), now))
		actions, next := p.Step(now)
		require.Empty(t, actions)
		require.Equal(t, now.Add(backOffAfter), next)
		actions, next = p.Step(next)
		require.Empty(t, actions)
		require.Equal(t, now.Add(seconds*time.Second), next)
		require.Empty(t, stepped(p, next.Add(-1)))
		now = next
		require.Len(t, stepped(p, now), 1)
		require.Equal(t, "ImagePullBackOff", waiting(p).Reason, "until the pull has another result")
	}
	require.True(t, p.Pulled("c", 8, "id", nil, now))
	require.Len(t, stepped(p, now), 1)
	p.Started("c", "test://1", now)
	p.Observe("c", runtime.State{Exit: &runtime.Exit{Code: 1, At: now}})
	require.Len(t, stepped(p, now), 1, "failed pulls do not count towards the back-off of a program that crashes")
}

func TestPull_RunsForAllContainersAtTheSameTime(t *testing.T) {
	t.Parallel()
	pod := newPod()
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "slow", Image: "large:1"})
	p := New(pod, "127.0.0.1", start, 0)
	require.Equal(t, []Action{Pull{&pod.Spec.Containers[0], 1}, Pull{&pod.Spec.Containers[1], 1}}, stepped(p, start))
	require.True(t, p.Pulled("c", 1, "id", nil, start))
	require.Equal(t, []Action{Start{&pod.Spec.Containers[0], 0}}, stepped(p, start))
	p.Started("c", "test://1", start)
	p.Observe("c", runtime.State{Ready: true})
	require.Empty(t, stepped(p, start.Add(time.Hour)))
	s := p.Status(start, nil)
	require.Equal(t, corev1.PodPending, s.Phase)
	require.True(t, s.ContainerStatuses[0].Ready)
	require.Equal(t, "ContainerCreating", s.ContainerStatuses[1].State.Waiting.Reason)
}

func TestPull_EndsWhereTheImageChanges(t *testing.T) {
	t.Parallel()
	p := pullingPod(t, newPod())
	changed := newPod()
	changed.Spec.Containers[0].Image = "nginx:2"
	p.Update(changed)
	actions := stepped(p, start)
	require.Equal(t, CancelPull{"c"}, actions[0])
	require.Equal(t, "nginx:2", actions[1].(Pull).Container.Image)
	require.Equal(t, 2, actions[1].(Pull).Attempt)
	require.False(t, p.Pulled("c", 1, "old", nil, start), "the first pull comes late")
	require.False(t, p.Pulled("c", 1, "", errors.New("cancelled"), start))
	require.Empty(t, stepped(p, start))
	require.Empty(t, p.TakeEvents())
	require.True(t, p.Pulled("c", 2, "new", nil, start))

	changed = newPod() // after the pull, and before the start
	p.Update(changed)
	actions = stepped(p, start)
	require.Len(t, actions, 1)
	require.Equal(t, "nginx:1", actions[0].(Pull).Container.Image)
	require.True(t, p.Pulled("c", 3, "id", nil, start))
	require.Equal(t, "nginx:1", stepped(p, start)[0].(Start).Container.Image)
}

func TestPull_EndsWithThePod(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Pod){
		"deletion": func(p *Pod) { p.Stop(start, 30*time.Second) },
		"eviction": func(p *Pod) { p.Disrupt("Evicted", "why", start, time.Second) },
	} {
		p := pullingPod(t, newPod())
		end(p)
		require.Equal(t, []Action{CancelPull{"c"}}, stepped(p, start), name)
		require.True(t, p.Stopped())
		require.Equal(t, corev1.PodFailed, p.Phase())
		require.False(t, p.Pulled("c", 1, "id", nil, start), "it comes late")
		require.Empty(t, stepped(p, start.Add(time.Hour)))
		require.Empty(t, p.TakeEvents())
	}
	pod := newPod()
	pod.Spec.ActiveDeadlineSeconds = new(int64(60))
	p := pullingPod(t, pod)
	require.Equal(t, []Action{CancelPull{"c"}}, stepped(p, start.Add(time.Minute)))
	require.Equal(t, "DeadlineExceeded", p.Status(start, nil).Reason)
}

// A pull, or a start, that the agent cancels because the pod will end has not failed.
func TestHalt_MakesNoFailureOfACancelledCall(t *testing.T) {
	t.Parallel()
	p := pullingPod(t, newPod())
	p.Halt()
	require.False(t, p.Pulled("c", 1, "", errors.New("cancelled"), start))
	require.Empty(t, stepped(p, start.Add(time.Hour)), "it is not pulled again")
	require.Equal(t, "ContainerCreating", waiting(p).Reason)
	p.Continue()
	require.Len(t, stepped(p, start), 1)
	p.Halt()
	p.Continue()
	require.Len(t, stepped(p, start), 1)
	require.False(t, p.Pulled("c", 2, "", errors.New("cancelled"), start), "its result comes after all")
	require.True(t, p.Pulled("c", 3, "id", nil, start))
	require.Len(t, stepped(p, start), 1)
	p.Halt()
	p.StartFailed("c", errors.New("cancelled"), start)
	require.Empty(t, stepped(p, start.Add(time.Hour)))
	require.Empty(t, p.TakeEvents())
	p.Stop(start, 0)
	require.Empty(t, stepped(p, start))
	require.Equal(t, corev1.PodFailed, p.Phase())
}

func TestStart_OfAPodThatEndsMeanwhileLeadsToAStop(t *testing.T) {
	t.Parallel()
	p := pullingPod(t, newPod())
	require.True(t, p.Pulled("c", 1, "id", nil, start))
	require.Len(t, stepped(p, start), 1)
	p.Stop(start, 30*time.Second)
	require.Empty(t, stepped(p, start))
	require.False(t, p.Stopped(), "the start has no result yet")
	p.Started("c", "test://1", start)
	now := start.Add(10 * time.Second)
	require.Equal(t, []Action{Stop{"c", 20 * time.Second}}, stepped(p, now))
	require.Empty(t, stepped(p, now))
	p.Stop(now, time.Second)
	require.Equal(t, []Action{Stop{"c", time.Second}}, stepped(p, now), "the time is shorter now")
	p.Stop(now, time.Hour)
	require.Empty(t, stepped(p, now), "and does not become longer")
}

func TestStart_ReportsAFailureByItsClass(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for reason, err := range map[string]error{
		"RunContainerError": cause, "CreateContainerConfigError": runtime.ConfigError{Err: cause},
		"CrashLoopBackOff": runtime.StartError{Err: cause},
	} {
		p := pullingPod(t, newPod())
		for attempt := range 2 {
			require.True(t, p.Pulled("c", attempt+1, "id", nil, start))
			require.Len(t, stepped(p, start), 1)
			p.StartFailed("c", err, start)
			require.Equal(t, Event{corev1.EventTypeWarning, "Failed", "Error: cause"}, p.TakeEvents()[0])
			if len(stepped(p, start)) == 0 {
				break // only a command that fails is tried again at once
			}
		}
		require.Equal(t, reason, waiting(p).Reason)
		require.Empty(t, stepped(p, start.Add(10*time.Second-1)))
		require.Len(t, stepped(p, start.Add(10*time.Second)), 1)
	}
}

// A container that crashes after a while has the Event, too, once for each back-off.
func TestPod_ReportsEachBackOff(t *testing.T) {
	t.Parallel()
	p := drive(newPod(simulated.AnnotationRunFor, "1m", simulated.AnnotationExitCode, "1"), 0)
	backOffs := func() (n int) {
		for _, e := range p.events {
			if e.Reason == "BackOff" {
				require.Equal(t, "Back-off restarting failed container c in pod p_default(uid-p)", e.Message)
				n++
			}
		}
		return n
	}
	now := p.step(p.step(start)) // the first restart is at once
	require.Zero(t, backOffs())
	for i := range 3 {
		next := p.step(now) // it ends
		require.Equal(t, i+1, backOffs())
		require.Equal(t, next, p.step(now.Add(time.Second)))
		require.Equal(t, i+1, backOffs(), "once")
		now = p.step(next) // it runs
	}
}

// While the image of the next run is pulled, the status shows the last run and the pull.
func TestPull_OfARestartShowsTheRunBefore(t *testing.T) {
	t.Parallel()
	p := pullingPod(t, newPod())
	require.True(t, p.Pulled("c", 1, "id", nil, start))
	require.Len(t, stepped(p, start), 1)
	p.Started("c", "test://1", start)
	p.Observe("c", runtime.State{Exit: &runtime.Exit{Code: 3, At: start}})
	require.Len(t, stepped(p, start), 1, "the first restart is at once")
	s := p.Status(start, nil).ContainerStatuses[0]
	require.Equal(t, "ContainerCreating", s.State.Waiting.Reason)
	require.EqualValues(t, 3, s.LastTerminationState.Terminated.ExitCode)
	require.Equal(t, corev1.PodRunning, p.Phase())
}

func TestResume_CountsALostContainerAsAFailure(t *testing.T) {
	t.Parallel()
	earlier := drive(newPod(), 0)
	earlier.step(start)
	pod := newPod()
	pod.Status = *earlier.status(start)
	p := New(pod, "127.0.0.1", start, 0)
	p.Resume()
	require.Len(t, p.Adoptions(), 1)
	require.NotNil(t, p.Status(start, nil).ContainerStatuses[0].State.Running, "as long as it is not known")
	p.Lost("c", errors.New("it is gone"))
	require.Empty(t, p.Adoptions())
	require.Len(t, stepped(p, start), 1, "it is restarted")
	last := p.Status(start, nil).ContainerStatuses[0].LastTerminationState.Terminated
	require.Equal(t, "ContainerStatusUnknown", last.Reason)
	require.EqualValues(t, 137, last.ExitCode)
	require.Equal(t, "it is gone", last.Message)
}

func TestStatus_HasAnAddressOfEachFamily(t *testing.T) {
	t.Parallel()
	p := New(newPod(), "127.0.0.1", start, 0)
	require.Empty(t, p.Status(start, nil).PodIP)
	p.SetAddresses([]string{"10.244.0.2", "fd00::2"})
	s := p.Status(start, nil)
	require.Equal(t, "10.244.0.2", s.PodIP)
	require.Equal(t, []corev1.PodIP{{IP: "10.244.0.2"}, {IP: "fd00::2"}}, s.PodIPs)
	pod := newPod()
	pod.Status = *s
	p = New(pod, "127.0.0.1", start, 0)
	p.Resume()
	require.Equal(t, []string{"10.244.0.2", "fd00::2"}, p.Addresses())
}
