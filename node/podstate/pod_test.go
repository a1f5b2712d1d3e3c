package podstate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

var start = time.Unix(1_800_000_000, 0)

// newPod returns a pod with one container and pairs of annotations.
func newPod(annotations ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "uid-p", Generation: 1,
			Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			NodeName: "n", RestartPolicy: corev1.RestartPolicyAlways,
			Containers: []corev1.Container{{Name: "c", Image: "nginx:1"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}},
	}
	for i := 0; i < len(annotations); i += 2 {
		pod.Annotations[annotations[i]] = annotations[i+1]
	}
	return pod
}

// driver carries out the actions of a pod with the simulated runtime, as the agent does.
type driver struct {
	*Pod
	runs    runtime.Runtime
	running map[string]runtime.Container
	events  []Event
}

func drive(pod *corev1.Pod, delay time.Duration) *driver {
	runs := simulated.New(simulated.Options{StartDelay: delay, Now: func() time.Time { return start }})
	d := &driver{New(pod, "127.0.0.1", start, runs.Delay(pod)), runs, map[string]runtime.Container{}, nil}
	d.SetAddresses([]string{"10.244.0.2"})
	return d
}

// resume continues from the status of the pod.
func (d *driver) resume(t *testing.T) {
	t.Helper()
	d.Resume()
	for _, a := range d.Adoptions() {
		c, err := d.runs.Adopt(t.Context(), d.Pod.Pod(), a.Container, a.Status)
		require.NoError(t, err)
		d.running[a.Container.Name] = c
		d.Adopted(a.Container.Name)
	}
	require.Empty(t, d.Adoptions())
}

// step steps until there is no action left, and returns when the next step is due.
func (d *driver) step(now time.Time) time.Time {
	for {
		for name, c := range d.running {
			state := c.State(now)
			d.Observe(name, state)
			if state.Exit != nil {
				delete(d.running, name)
			}
		}
		actions, next := d.Step(now)
		d.events = append(d.events, d.TakeEvents()...)
		if len(actions) == 0 {
			return next
		}
		for _, action := range actions {
			d.perform(action, now)
		}
	}
}

func (d *driver) perform(action Action, now time.Time) {
	ctx, pod := context.Background(), d.Pod.Pod()
	switch action := action.(type) {
	case Pull:
		image, err := d.runs.Pull(ctx, runtime.PullRequest{Pod: pod, Image: action.Container.Image})
		d.Pulled(action.Container.Name, action.Attempt, image.ID, err, now)
	case Start:
		c, err := d.runs.Start(ctx, pod, action.Container, action.Run, now)
		if err != nil {
			d.StartFailed(action.Container.Name, err, now)
			return
		}
		d.running[action.Container.Name] = c
		d.Started(action.Container.Name, c.ID(), now)
	case Stop:
		d.running[action.Container].Stop(now, action.Grace)
	case Resize:
		d.Resized(action.Container, d.running[action.Container.Name].Resize(ctx, action.Container))
	}
}

func (d *driver) status(now time.Time) *corev1.PodStatus { return d.Status(now, nil) }

func TestPod_WaitsForTheRuntimeThenForReadiness(t *testing.T) {
	t.Parallel()
	p := drive(newPod(simulated.AnnotationReadyAfter, "5s"), 2*time.Second)
	require.Equal(t, start.Add(2*time.Second), p.step(start))
	s := p.status(start)
	require.Equal(t, corev1.PodPending, s.Phase)
	require.Equal(t, "ContainerCreating", s.ContainerStatuses[0].State.Waiting.Reason)

	at := start.Add(2 * time.Second)
	require.Equal(t, at.Add(5*time.Second), p.step(at))
	s = p.status(at)
	require.Equal(t, corev1.PodRunning, s.Phase)
	require.Equal(t, "containers with unready status: [c]", Condition(s.Conditions, corev1.PodReady).Message)

	at = at.Add(5 * time.Second)
	require.Zero(t, p.step(at))
	require.Equal(t, corev1.ConditionTrue, Condition(p.status(at).Conditions, corev1.PodReady).Status)
}

func TestPod_RestartsWithBackoff(t *testing.T) {
	t.Parallel()
	p := drive(newPod(simulated.AnnotationExitCode, "3"), 0)
	now := start
	require.Equal(t, now.Add(10*time.Second), p.step(now))
	require.EqualValues(t, 1, p.status(now).ContainerStatuses[0].RestartCount, "the first restart is at once")
	for i, wait := range []time.Duration{20, 40, 80, 160, 300, 300} {
		now = p.step(now)
		next := p.step(now)
		require.Equal(t, wait*time.Second, next.Sub(now))
		c := p.status(now).ContainerStatuses[0]
		require.EqualValues(t, i+2, c.RestartCount)
		require.Equal(t, "CrashLoopBackOff", c.State.Waiting.Reason)
		require.EqualValues(t, 3, c.LastTerminationState.Terminated.ExitCode)
		require.Equal(t, corev1.PodRunning, p.Phase())
	}
}

func TestPod_RestartPolicyDecidesHowItEnds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		policy corev1.RestartPolicy
		code   string
		phase  corev1.PodPhase
	}{
		{corev1.RestartPolicyNever, "0", corev1.PodSucceeded},
		{corev1.RestartPolicyNever, "1", corev1.PodFailed},
		{corev1.RestartPolicyOnFailure, "0", corev1.PodSucceeded},
		{corev1.RestartPolicyOnFailure, "1", corev1.PodRunning},
		{corev1.RestartPolicyAlways, "0", corev1.PodRunning},
	}
	for _, tt := range tests {
		t.Run(string(tt.policy)+tt.code, func(t *testing.T) {
			t.Parallel()
			pod := newPod(simulated.AnnotationExitCode, tt.code)
			pod.Spec.RestartPolicy = tt.policy
			p := drive(pod, 0)
			p.step(start)
			require.Equal(t, tt.phase, p.status(start).Phase)
			require.NotEqual(t, corev1.ConditionTrue, Condition(p.status(start).Conditions, corev1.PodReady).Status)
		})
	}
}

func TestPod_RunsInitContainersThenSidecarsBesideContainers(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	pod := newPod(simulated.AnnotationRunFor, "1m")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "i"},
		{Name: "sidecar", Image: "s", RestartPolicy: &always}}
	p := drive(pod, 0)
	require.Equal(t, start.Add(time.Minute), p.step(start))
	s := p.status(start)
	require.EqualValues(t, 0, s.InitContainerStatuses[0].State.Terminated.ExitCode)
	require.True(t, s.InitContainerStatuses[0].Ready)
	require.NotNil(t, s.InitContainerStatuses[1].State.Running)
	require.Equal(t, corev1.ConditionTrue, Condition(s.Conditions, corev1.PodReady).Status)

	end := start.Add(time.Minute)
	require.Zero(t, p.step(end))
	s = p.status(end)
	require.Equal(t, corev1.PodSucceeded, s.Phase)
	require.NotNil(t, s.InitContainerStatuses[1].State.Terminated, "a sidecar does not outlive the other containers")
}

func TestPod_RestartsAContainerWhoseImageChanges(t *testing.T) {
	t.Parallel()
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever} {
		pod := newPod()
		pod.Spec.RestartPolicy = policy
		p := drive(pod, 0)
		p.step(start)
		before := p.status(start).ContainerStatuses[0]
		changed := pod.DeepCopy()
		changed.Spec.Containers[0].Image = "nginx:2"
		p.Update(changed)
		p.events = nil
		p.step(start.Add(time.Minute))
		require.Equal(t, []Event{{corev1.EventTypeNormal, "Killing",
			"Container c definition changed, will be restarted"}}, p.events)
		after := p.status(start.Add(time.Minute)).ContainerStatuses[0]
		require.Equal(t, "nginx:2", after.Image)
		require.NotEqual(t, before.ImageID, after.ImageID)
		require.EqualValues(t, 1, after.RestartCount, "at once, whatever the restartPolicy")
		require.NotNil(t, after.State.Running)
		require.Equal(t, before.ContainerID, after.LastTerminationState.Terminated.ContainerID)
		p.events = nil
		p.step(start.Add(2 * time.Minute))
		require.Empty(t, p.events, "once")
	}
}

func TestPod_SeesAnImageThatChangedWhileNoAgentWasThere(t *testing.T) {
	t.Parallel()
	pod := newPod()
	earlier := drive(pod, 0)
	earlier.step(start)
	pod = pod.DeepCopy()
	pod.Status = *earlier.status(start)
	pod.Spec.Containers[0].Image = "nginx:2"
	p := drive(pod, 0)
	p.resume(t)
	p.step(start.Add(time.Minute))
	s := p.status(start.Add(time.Minute)).ContainerStatuses[0]
	require.Equal(t, "nginx:2", s.Image)
	require.EqualValues(t, 1, s.RestartCount)
}

func TestPod_TriesAnotherImageAtOnce(t *testing.T) {
	t.Parallel()
	p := drive(newPod(simulated.AnnotationImagePullError, "no such image"), 0)
	p.step(start)
	pod := newPod()
	pod.Spec.Containers[0].Image = "nginx:2"
	p.Update(pod)
	require.Zero(t, p.step(start.Add(time.Second)))
	s := p.status(start.Add(time.Second)).ContainerStatuses[0]
	require.NotNil(t, s.State.Running)
	require.Equal(t, "nginx:2", s.Image)
	require.Zero(t, s.RestartCount)
}

func TestPod_StopsServersWithSuccessAndJobsWithFailure(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		annotations []string
		phase       corev1.PodPhase
		code        int32
	}{
		"a server": {nil, corev1.PodSucceeded, 0},
		"a job":    {[]string{simulated.AnnotationRunFor, "1h"}, corev1.PodFailed, 143},
	} {
		p := drive(newPod(tt.annotations...), 0)
		p.step(start)
		p.Stop(start.Add(time.Second), 30*time.Second)
		require.Zero(t, p.step(start.Add(time.Second)), name)
		require.True(t, p.Stopped(), name)
		s := p.status(start.Add(time.Second))
		require.Equal(t, tt.phase, s.Phase, name)
		require.Equal(t, tt.code, s.ContainerStatuses[0].State.Terminated.ExitCode, name)
	}
}

func TestPod_ReadinessGatesHoldReadyBack(t *testing.T) {
	t.Parallel()
	pod := newPod()
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "lb"}}
	p := drive(pod, 0)
	p.step(start)
	require.Equal(t, "ReadinessGatesNotReady", Condition(p.status(start).Conditions, corev1.PodReady).Reason)
	open := pod.DeepCopy()
	open.Status.Conditions = append(open.Status.Conditions,
		corev1.PodCondition{Type: "lb", Status: corev1.ConditionTrue})
	p.Update(open)
	s := p.status(start)
	require.Equal(t, corev1.ConditionTrue, Condition(s.Conditions, corev1.PodReady).Status)
	require.NotNil(t, Condition(s.Conditions, "lb"), "the conditions of others stay")
	require.Nil(t, Condition(p.Own(s).Conditions, "lb"), "and are not the agent's to write")
}

func TestPod_EndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	pod := newPod()
	pod.Spec.ActiveDeadlineSeconds = new(int64(60))
	p := drive(pod, 0)
	require.Zero(t, p.step(start))
	require.Equal(t, corev1.PodRunning, p.Phase())
	deadline := p.Deadline()
	require.True(t, deadline.Equal(start.Add(time.Minute)))
	p.step(deadline.Add(-time.Nanosecond))
	require.Equal(t, corev1.PodRunning, p.Phase())
	p.step(deadline)
	s := p.status(deadline)
	require.Equal(t, corev1.PodFailed, s.Phase)
	require.Equal(t, "DeadlineExceeded", s.Reason)
	require.Zero(t, p.Deadline(), "the pod is ending")
}

func TestPod_RunsEphemeralContainersOnce(t *testing.T) {
	t.Parallel()
	pod := newPod()
	p := drive(pod, 0)
	p.step(start)
	with := pod.DeepCopy()
	with.Spec.EphemeralContainers =
		[]corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug",
			Image: "d"}}}
	p.Update(with)
	p.step(start)
	s := p.status(start)
	require.NotNil(t, s.EphemeralContainerStatuses[0].State.Running)
	require.Equal(t, corev1.ConditionTrue, Condition(s.Conditions, corev1.PodReady).Status)
	p.running["debug"].Stop(start, 0)
	require.Zero(t, p.step(start))
	require.NotNil(t, p.status(start).EphemeralContainerStatuses[0].State.Terminated)
	require.Equal(t, corev1.PodRunning, p.Phase())
}

func TestStatus_HasTwelveKilobytesOfTerminationMessages(t *testing.T) {
	t.Parallel()
	pod := newPod()
	for i := range 5 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint(i)})
	}
	p := drive(pod, 0)
	for _, c := range p.app {
		message := strings.Repeat("é", 2048)
		c.ended = &corev1.ContainerStateTerminated{ExitCode: 1, Message: message, FinishedAt: metav1.NewTime(start)}
		c.last = c.ended
	}
	for _, c := range p.status(start).ContainerStatuses {
		require.Equal(t, strings.Repeat("é", 1024), c.LastTerminationState.Terminated.Message)
	}
	require.Len(t, p.app[0].ended.Message, 4096, "the state machine keeps the whole message")
}

func TestPod_RestartsByTheRulesOfAContainer(t *testing.T) {
	t.Parallel()
	never := corev1.ContainerRestartPolicyNever
	for code, restarts := range map[string]bool{"42": true, "43": false, "7": true, "0": false} {
		pod := newPod(simulated.AnnotationExitCode, code)
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Spec.Containers[0].RestartPolicy = &never
		rule := func(o corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) corev1.ContainerRestartRule {
			return corev1.ContainerRestartRule{Action: corev1.ContainerRestartRuleActionRestart,
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: o, Values: codes}}
		}
		pod.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{
			rule(corev1.ContainerRestartRuleOnExitCodesOpIn, 42),
			rule(corev1.ContainerRestartRuleOnExitCodesOpNotIn, 0, 43)}
		p := drive(pod, 0)
		p.step(start)
		require.Equal(t, restarts, p.status(start).Phase == corev1.PodRunning, code)
	}
}

func TestSimulated_FailsANumberOfTimes(t *testing.T) {
	t.Parallel()
	pod := newPod(simulated.AnnotationFailures, "2")
	p := drive(pod, 0)
	now := p.step(start)
	require.Equal(t, start.Add(10*time.Second), now, "it failed twice, and waits")
	require.EqualValues(t, 1, p.app[0].ended.ExitCode)
	require.Zero(t, p.step(now))
	require.Equal(t, corev1.PodRunning, p.Phase())
	require.EqualValues(t, 2, p.status(now).ContainerStatuses[0].RestartCount)
	require.True(t, p.status(now).ContainerStatuses[0].Ready)
}

func TestSimulated_AlternatesReadiness(t *testing.T) {
	t.Parallel()
	p := drive(newPod(simulated.AnnotationReadyFor, "10s", simulated.AnnotationUnreadyFor, "5s"), 0)
	now := start
	for _, want := range []struct {
		ready bool
		lasts time.Duration
	}{{true, 10 * time.Second}, {false, 5 * time.Second}, {true, 10 * time.Second}, {false, 5 * time.Second}} {
		next := p.step(now)
		require.Equal(t, want.ready, p.status(now).ContainerStatuses[0].Ready)
		require.Equal(t, now.Add(want.lasts), next)
		now = next
	}
}

// Whichever annotations a simulated pod has, ten seconds of it take few steps and few writes of its status.
func TestSimulation_DoesNotSpinWhateverItsAnnotationsSay(t *testing.T) {
	t.Parallel()
	const most = 12 // a turn each second, and its start
	for name, annotations := range map[string][]string{
		"ready in turns":           {simulated.AnnotationReadyFor, "1ns"},
		"ready for no time":        {simulated.AnnotationReadyFor, "0s"},
		"ready for less than none": {simulated.AnnotationReadyFor, "-1h"},
		"not ready for a moment":   {simulated.AnnotationReadyFor, "1s", simulated.AnnotationUnreadyFor, "1ns"},
		"ends at once":             {simulated.AnnotationRunFor, "0s"},
		"ends after a moment":      {simulated.AnnotationRunFor, "1ns"},
		"fails at once":            {simulated.AnnotationExitCode, "1"},
		"fails for ever": {simulated.AnnotationRunFor, "1ns", simulated.AnnotationFailures,
			"99999999999999999999"},
		"image that is not there": {simulated.AnnotationImagePullError, "gone"},
		"all together": {simulated.AnnotationReadyFor, "1ns", simulated.AnnotationUnreadyFor, "1ns",
			simulated.AnnotationReadyAfter, "1ns",
			simulated.AnnotationRunFor, "2ns",
			simulated.AnnotationFailures, "3", simulated.AnnotationLog, "x", simulated.AnnotationLogEvery, "1ns"},
	} {
		p := drive(newPod(annotations...), 0)
		var sent *corev1.PodStatus
		writes, steps := 0, 0
		for now := start; !now.After(start.Add(10 * time.Second)); {
			next := p.step(now)
			if own := p.Own(p.status(now)); sent == nil || !equality.Semantic.DeepEqual(sent, own) {
				writes++
				sent = own
			}
			if steps++; steps > 2*most || next.IsZero() {
				break
			}
			now = next
		}
		require.LessOrEqual(t, writes, most, name)
		require.LessOrEqual(t, steps, 2*most, name)
	}
}

// sizedPod returns a pod with requests and limits.
func sizedPod(cpu, memory string) *corev1.Pod {
	pod := newPod()
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory)}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	return pod
}

func TestResize_ReportsAndRepeatsAFailure(t *testing.T) {
	t.Parallel()
	p := drive(sizedPod("1", "1Gi"), 0)
	p.step(start)
	full := &refusing{Container: p.running["c"], err: context.DeadlineExceeded}
	p.running["c"] = full
	pod := sizedPod("2", "1Gi")
	pod.Generation = 7
	p.Update(pod)
	require.True(t, p.WantsResize())
	p.Allocate()
	require.Equal(t, start.Add(ResizeRetry), p.step(start))
	s := p.status(start)
	inProgress := Condition(s.Conditions, corev1.PodResizeInProgress)
	require.Equal(t, corev1.PodReasonError, inProgress.Reason)
	require.Equal(t, full.err.Error(), inProgress.Message)
	require.EqualValues(t, 7, inProgress.ObservedGeneration)
	require.Equal(t, "2", s.ContainerStatuses[0].AllocatedResources.Cpu().String())
	require.Equal(t, "1", s.ContainerStatuses[0].Resources.Limits.Cpu().String())
	full.err = nil
	require.Zero(t, p.step(start.Add(ResizeRetry)))
	s = p.status(start.Add(ResizeRetry))
	require.Nil(t, Condition(s.Conditions, corev1.PodResizeInProgress))
	require.Equal(t, "2", s.ContainerStatuses[0].Resources.Limits.Cpu().String())
}

// refusing is a container that cannot be resized.
type refusing struct {
	runtime.Container
	err error
}

func (r *refusing) Resize(context.Context, *corev1.Container) error { return r.err }
