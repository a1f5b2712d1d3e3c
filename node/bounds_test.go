package node

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

// Whatever a pod says of its simulation, ten seconds of it are few steps and few writes of its status.
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
		p := stepped(boundPod("p", "n", annotations...), 0)
		writes, steps := 0, 0
		for now := start; !now.After(start.Add(10 * time.Second)); {
			next := p.step(now)
			if own := p.own(p.status(now)); p.sent == nil || !equality.Semantic.DeepEqual(p.sent, own) {
				writes++
				p.sent = own
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

func TestAccount_HoldsWhateverPodsAskFor(t *testing.T) {
	t.Parallel()
	pod := boundPod("p", "n")
	pod.Spec.TerminationGracePeriodSeconds = new(int64(math.MaxInt64))
	require.Equal(t, amount.Longest, runtime.GracePeriod(pod))

	var a account
	capacity := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi"),
		corev1.ResourcePods: resource.MustParse("10")}
	asking := func(name, memory string) *corev1.Pod {
		pod := boundPod(name, "n")
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(
			memory)}
		return pod
	}
	require.True(t, a.take("one", wantedBy(asking("one", "1Mi")), capacity))
	require.False(t, a.take("two", wantedBy(asking("two", "9223372036854775807")), capacity),
		"the sum is more than a number holds")
	a.note("old", wantedBy(asking("old", "9223372036854775807")))
	a.note("older", wantedBy(asking("older", "9223372036854775807")))
	require.False(t, a.take("three", wantedBy(asking("three", "1Mi")), capacity), "the node is full")
	a.release("old")
	a.release("older")
	require.True(t, a.take("three", wantedBy(asking("three", "1Mi")), capacity), "there is room again")

	stats, _ := asStats(runtime.Usage{CPU: 1e6, CPUSeconds: 1e15}, start)
	require.EqualValues(t, uint64(1e15), stats.UsageNanoCores)
	require.EqualValues(t, uint64(1<<63), stats.UsageCoreNanoSeconds)
}
