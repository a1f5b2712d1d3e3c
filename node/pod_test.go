package node

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/simulated"
)

var start = time.Unix(1_800_000_000, 0)

func stepped(pod *corev1.Pod, delay time.Duration) *podState {
	runs := simulated.New(simulated.Options{StartDelay: delay, Now: func() time.Time { return start }})
	p := newPodState(pod, runs, "127.0.0.1", start)
	p.addresses = []string{"10.244.0.2"}
	return p
}

func TestPod_WaitsForTheRuntimeThenForReadiness(t *testing.T) {
	t.Parallel()
	p := stepped(boundPod("p", "n", simulated.AnnotationReadyAfter, "5s"), 2*time.Second)
	require.Equal(t, start.Add(2*time.Second), p.step(start))
	s := p.status(start)
	require.Equal(t, corev1.PodPending, s.Phase)
	require.Equal(t, "ContainerCreating", s.ContainerStatuses[0].State.Waiting.Reason)

	at := start.Add(2 * time.Second)
	require.Equal(t, at.Add(5*time.Second), p.step(at))
	s = p.status(at)
	require.Equal(t, corev1.PodRunning, s.Phase)
	require.Equal(t, "containers with unready status: [c]", findCondition(s.Conditions, corev1.PodReady).Message)

	at = at.Add(5 * time.Second)
	require.Zero(t, p.step(at))
	require.Equal(t, corev1.ConditionTrue, findCondition(p.status(at).Conditions, corev1.PodReady).Status)
}

func TestPod_RestartsWithBackoff(t *testing.T) {
	t.Parallel()
	p := stepped(boundPod("p", "n", simulated.AnnotationExitCode, "3"), 0)
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
		require.Equal(t, corev1.PodRunning, p.phase())
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
			pod := boundPod("p", "n", simulated.AnnotationExitCode, tt.code)
			pod.Spec.RestartPolicy = tt.policy
			p := stepped(pod, 0)
			p.step(start)
			require.Equal(t, tt.phase, p.status(start).Phase)
			require.NotEqual(t, corev1.ConditionTrue, findCondition(p.status(start).Conditions, corev1.PodReady).Status)
		})
	}
}

func TestPod_RunsInitContainersThenSidecarsBesideTheWork(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	pod := boundPod("p", "n", simulated.AnnotationRunFor, "1m")
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "i"},
		{Name: "sidecar", Image: "s", RestartPolicy: &always}}
	p := stepped(pod, 0)
	require.Equal(t, start.Add(time.Minute), p.step(start))
	s := p.status(start)
	require.EqualValues(t, 0, s.InitContainerStatuses[0].State.Terminated.ExitCode)
	require.True(t, s.InitContainerStatuses[0].Ready)
	require.NotNil(t, s.InitContainerStatuses[1].State.Running)
	require.Equal(t, corev1.ConditionTrue, findCondition(s.Conditions, corev1.PodReady).Status)

	end := start.Add(time.Minute)
	require.Zero(t, p.step(end))
	s = p.status(end)
	require.Equal(t, corev1.PodSucceeded, s.Phase)
	require.NotNil(t, s.InitContainerStatuses[1].State.Terminated, "a sidecar does not outlive the work")
}

func TestPod_BacksOffFromABrokenImageUntilItIsMended(t *testing.T) {
	t.Parallel()
	p := stepped(boundPod("p", "n", simulated.AnnotationImagePullError, "no such image"), 0)
	require.Equal(t, start.Add(10*time.Second), p.step(start))
	waiting := p.status(start).ContainerStatuses[0].State.Waiting
	require.Equal(t, corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}, *waiting)
	require.Equal(t, corev1.PodPending, p.phase())
	require.Equal(t, "Failed", p.events[0].reason)

	now := start.Add(10 * time.Second)
	require.Equal(t, now.Add(20*time.Second), p.step(now))
	require.Equal(t, "ImagePullBackOff", p.status(now).ContainerStatuses[0].State.Waiting.Reason)

	p.pod = boundPod("p", "n")
	require.Zero(t, p.step(now.Add(20*time.Second)))
	require.Equal(t, corev1.PodRunning, p.phase())
}

func TestPod_RestartsAContainerWhoseImageChanges(t *testing.T) {
	t.Parallel()
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever} {
		pod := boundPod("p", "n")
		pod.Spec.RestartPolicy = policy
		p := stepped(pod, 0)
		p.step(start)
		before := p.status(start).ContainerStatuses[0]
		changed := pod.DeepCopy()
		changed.Spec.Containers[0].Image = "nginx:2"
		p.pod, p.events = changed, nil
		p.step(start.Add(time.Minute))
		require.Equal(t, []podEvent{{corev1.EventTypeNormal, "Killing",
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
	pod := boundPod("p", "n")
	earlier := stepped(pod, 0)
	earlier.step(start)
	pod = pod.DeepCopy()
	pod.Status = *earlier.status(start)
	pod.Spec.Containers[0].Image = "nginx:2"
	p := stepped(pod, 0)
	p.resume()
	p.step(start.Add(time.Minute))
	s := p.status(start.Add(time.Minute)).ContainerStatuses[0]
	require.Equal(t, "nginx:2", s.Image)
	require.EqualValues(t, 1, s.RestartCount)
}

func TestPod_TriesAnotherImageAtOnce(t *testing.T) {
	t.Parallel()
	p := stepped(boundPod("p", "n", simulated.AnnotationImagePullError, "no such image"), 0)
	p.step(start)
	p.pod = boundPod("p", "n")
	p.pod.Spec.Containers[0].Image = "nginx:2"
	require.Zero(t, p.step(start.Add(time.Second)))
	s := p.status(start.Add(time.Second)).ContainerStatuses[0]
	require.NotNil(t, s.State.Running)
	require.Equal(t, "nginx:2", s.Image)
	require.Zero(t, s.RestartCount)
}

func TestPod_StopsWithWhatItsWorkDeserves(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		annotations []string
		phase       corev1.PodPhase
		code        int32
	}{
		"a server": {nil, corev1.PodSucceeded, 0},
		"a job":    {[]string{simulated.AnnotationRunFor, "1h"}, corev1.PodFailed, 143},
	} {
		p := stepped(boundPod("p", "n", tt.annotations...), 0)
		p.step(start)
		p.stop(start.Add(time.Second), 30*time.Second)
		require.Zero(t, p.step(start.Add(time.Second)), name)
		require.True(t, p.stopped(), name)
		s := p.status(start.Add(time.Second))
		require.Equal(t, tt.phase, s.Phase, name)
		require.Equal(t, tt.code, s.ContainerStatuses[0].State.Terminated.ExitCode, name)
	}
}

func TestPod_ReadinessGatesHoldReadyBack(t *testing.T) {
	t.Parallel()
	pod := boundPod("p", "n")
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "lb"}}
	p := stepped(pod, 0)
	p.step(start)
	require.Equal(t, "ReadinessGatesNotReady", findCondition(p.status(start).Conditions, corev1.PodReady).Reason)
	open := pod.DeepCopy()
	open.Status.Conditions = append(open.Status.Conditions,
		corev1.PodCondition{Type: "lb", Status: corev1.ConditionTrue})
	p.pod = open
	s := p.status(start)
	require.Equal(t, corev1.ConditionTrue, findCondition(s.Conditions, corev1.PodReady).Status)
	require.NotNil(t, findCondition(s.Conditions, "lb"), "the conditions of others stay")
	patch, err := statusPatch(p, p.own(s), s.Conditions)
	require.NoError(t, err)
	require.NotContains(t, string(patch), `"type":"lb","status"`,
		"and are not written, for the cache may show them as they were")
	require.Equal(t, 1, strings.Count(string(patch), `"lb"`), "but in the order: %s", patch)
}

func TestAddresses_RunOutAndReturn(t *testing.T) {
	t.Parallel()
	var a addresses
	_, err := a.takeAddress("early")
	require.ErrorIs(t, err, errNoCIDR)
	a.setCIDR("10.244.0.0/29")
	seen := map[string]bool{}
	for _, pod := range []string{"1", "2", "3", "4", "5"} {
		ip, err := a.takeAddress(types.UID("uid-" + pod))
		require.NoError(t, err)
		require.False(t, seen[ip])
		seen[ip] = true
	}
	_, err = a.takeAddress("one too many")
	require.EqualError(t, err, "no address of 10.244.0.0/29 is free")
	a.releaseAddress("uid-3")
	ip, err := a.takeAddress("late")
	require.NoError(t, err)
	require.Equal(t, "10.244.0.4", ip)
}

func TestCIDRs_DoNotOverlapWithThoseOfOthers(t *testing.T) {
	t.Parallel()
	c := newCIDRs(1000)
	c.note("foreign", "10.244.1.0/24") // inside the first /22
	first, err := c.choose("node-0")
	require.NoError(t, err)
	require.Equal(t, "10.244.4.0/22", first)
	second, err := c.choose("node-1")
	require.NoError(t, err)
	require.Equal(t, "10.244.8.0/22", second)
	require.Equal(t, 24, newCIDRs(110).bits)
}

func TestCIDRs_PassOverWhatAnotherNodeHas(t *testing.T) {
	t.Parallel()
	a := &agent{cidrs: newCIDRs(110)}
	refused := func(words string) error {
		return apierrors.NewForbidden(corev1.Resource("nodes"), "node-0", errors.New(words))
	}
	for _, c := range []struct {
		err  error
		next string
	}{
		{nil, "10.244.0.0/24"},
		{refused("is not allowed to modify taints"), "10.244.0.0/24"},
		{errors.New("spec.podCIDRs: no connection"), "10.244.0.0/24"},
		{refused("spec.podCIDRs: 10.244.0.0/24 overlaps with the range of another Node"), "10.244.1.0/24"},
		{refused("spec.podCIDRs: 10.244.1.0/24 overlaps with the range of another Node"), "10.244.2.0/24"},
	} {
		cidr, err := a.cidrs.choose("node-0")
		require.NoError(t, err)
		a.passOver(cidr, c.err)
		next, err := a.cidrs.choose("node-0")
		require.NoError(t, err)
		require.Equal(t, c.next, next)
	}
}

func TestCIDRs_AvoidTheMachinesNetworks(t *testing.T) {
	t.Parallel()
	c := newCIDRs(110)
	address := func(cidr string) net.Addr {
		ip, network, err := net.ParseCIDR(cidr)
		require.NoError(t, err)
		return &net.IPNet{IP: ip, Mask: network.Mask}
	}
	c.avoid([]net.Addr{address("10.244.0.1/24"), address("10.0.0.7/8"), address("192.168.0.1/16"),
		address("fe80::1/64")})
	first, err := c.choose("node-0")
	require.NoError(t, err)
	require.Equal(t, "10.244.1.0/24", first, "another agent of this machine has the first")
	second, err := c.choose("node-1")
	require.NoError(t, err)
	require.Equal(t, "10.244.2.0/24", second)
}

// BenchmarkStatus is a pod that comes to life, as far as the agent's own work goes.
func BenchmarkStatus(b *testing.B) {
	pod := boundPod("p", "n")
	b.ReportAllocs()
	for b.Loop() {
		p := stepped(pod, 0)
		p.step(start)
		s := p.status(start)
		if _, err := statusPatch(p, p.own(s), s.Conditions); err != nil {
			b.Fatal(err)
		}
	}
}

func TestPod_EndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	pod := boundPod("p", "n")
	pod.Spec.ActiveDeadlineSeconds = new(int64(60))
	p := stepped(pod, 0)
	require.Equal(t, start.Add(time.Minute), p.step(start))
	require.Equal(t, corev1.PodRunning, p.phase())
	at := start.Add(time.Minute)
	p.step(at)
	s := p.status(at)
	require.Equal(t, corev1.PodFailed, s.Phase)
	require.Equal(t, "DeadlineExceeded", s.Reason)
}

func TestPod_RunsEphemeralContainersOnce(t *testing.T) {
	t.Parallel()
	pod := boundPod("p", "n")
	p := stepped(pod, 0)
	p.step(start)
	with := pod.DeepCopy()
	with.Spec.EphemeralContainers =
		[]corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug",
			Image: "d"}}}
	p.pod = with
	p.step(start)
	s := p.status(start)
	require.NotNil(t, s.EphemeralContainerStatuses[0].State.Running)
	require.Equal(t, corev1.ConditionTrue, findCondition(s.Conditions, corev1.PodReady).Status)
	p.ephemeral[0].running.Stop(start, 0)
	require.Zero(t, p.step(start))
	require.NotNil(t, p.status(start).EphemeralContainerStatuses[0].State.Terminated)
	require.Equal(t, corev1.PodRunning, p.phase())
}

func TestStatus_HasTwelveKilobytesOfTerminationMessages(t *testing.T) {
	t.Parallel()
	pod := boundPod("p", "n")
	for i := range 5 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprint(i)})
	}
	p := stepped(pod, 0)
	for _, c := range p.app {
		message := strings.Repeat("é", 2048)
		c.ended = &corev1.ContainerStateTerminated{ExitCode: 1, Message: message, FinishedAt: metav1.NewTime(start)}
		c.last = c.ended
	}
	for _, c := range p.status(start).ContainerStatuses {
		require.Equal(t, strings.Repeat("é", 1024), c.LastTerminationState.Terminated.Message)
	}
	require.Len(t, p.app[0].ended.Message, 4096, "what the state machine has is as it was")
}

func TestPod_RestartsByTheRulesOfAContainer(t *testing.T) {
	t.Parallel()
	never := corev1.ContainerRestartPolicyNever
	for code, restarts := range map[string]bool{"42": true, "43": false, "7": true, "0": false} {
		pod := boundPod("p", "n", simulated.AnnotationExitCode, code)
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Spec.Containers[0].RestartPolicy = &never
		rule := func(o corev1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) corev1.ContainerRestartRule {
			return corev1.ContainerRestartRule{Action: corev1.ContainerRestartRuleActionRestart,
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: o, Values: codes}}
		}
		pod.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{
			rule(corev1.ContainerRestartRuleOnExitCodesOpIn, 42),
			rule(corev1.ContainerRestartRuleOnExitCodesOpNotIn, 0, 43)}
		p := stepped(pod, 0)
		p.step(start)
		require.Equal(t, restarts, p.status(start).Phase == corev1.PodRunning, code)
	}
}
