package node

import (
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Whatever a pod says of its simulation, ten seconds of it are few steps and few writes of its status.
func TestSimulation_DoesNotSpinWhateverItsAnnotationsSay(t *testing.T) {
	t.Parallel()
	const most = 12 // a turn each second, and its start
	for name, annotations := range map[string][]string{
		"ready in turns":           {annotationReadyFor, "1ns"},
		"ready for no time":        {annotationReadyFor, "0s"},
		"ready for less than none": {annotationReadyFor, "-1h"},
		"not ready for a moment":   {annotationReadyFor, "1s", annotationUnreadyFor, "1ns"},
		"ends at once":             {annotationRunFor, "0s"},
		"ends after a moment":      {annotationRunFor, "1ns"},
		"fails at once":            {annotationExitCode, "1"},
		"fails for ever":           {annotationRunFor, "1ns", annotationFailures, "99999999999999999999"},
		"image that is not there":  {annotationImagePullError, "gone"},
		"all together": {annotationReadyFor, "1ns", annotationUnreadyFor, "1ns", annotationReadyAfter, "1ns", annotationRunFor, "2ns",
			annotationFailures, "3", annotationLog, "x", annotationLogEvery, "1ns"},
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

func TestSimulation_CountsWhatIsOutOfBoundsAsTheBound(t *testing.T) {
	t.Parallel()
	run := func(annotations ...string) *simulatedContainer {
		pod := boundPod("p", "n", annotations...)
		return newSimulatedContainer(pod, &pod.Spec.Containers[0], "id", 0, start)
	}
	require.Equal(t, start.Add(longestSimulated), run(annotationReadyAfter, "2000000h").readyAt)
	require.Equal(t, start, run(annotationReadyAfter, "-1s").readyAt)
	require.Equal(t, start.Add(longestSimulated), run(annotationRunFor, "2000000h").endsAt)
	require.Equal(t, longestSimulated, run(annotationReadyFor, "2000000h").off)
	require.EqualValues(t, 255, run(annotationExitCode, "4000000000").code)
	require.EqualValues(t, 0, run(annotationExitCode, "-1").code)
	require.EqualValues(t, 1, run(annotationFailures, "99999999999999999999").code)
	require.False(t, run(annotationExitCode, "many").ends, "what is no number is as if it were not there")

	use := func(annotations ...string) usage { return simulatedUse(boundPod("p", "n", annotations...)) }
	all := use(annotationCPU, "999E", annotationMemory, "999Ei", annotationDisk, "999Ei", annotationPIDs, "999E")
	require.Equal(t, usage{cpu: 1_000_000, memory: 1 << 50, disk: 1 << 50, pids: 1 << 22}, all)
	require.Equal(t, usage{}, use(annotationCPU, "-1", annotationMemory, "-1", annotationDisk, "-1", annotationPIDs, "-1"))

	_, err := (&simulated{}).pull(boundPod("p", "n", annotationImagePullError, strings.Repeat("é", 1000)), &corev1.Container{})
	require.EqualError(t, err, strings.Repeat("é", 512))
	n := &simNode{}
	node := &corev1.Node{}
	node.Annotations = map[string]string{annotationSlow: "9000h"}
	n.behave(node)
	require.Equal(t, time.Hour, n.acts().slow)
}

func TestSimulation_KeepsNoMoreOfALogThanAFileWouldHave(t *testing.T) {
	t.Parallel()
	read := func(line, every string) (lines, size int) {
		s := &simulated{now: func() time.Time { return start.Add(24 * time.Hour) }}
		run := &logRun{started: start, ended: func() (time.Time, bool) { return time.Time{}, false }}
		l, err := s.openLog(boundPod("p", "n", annotationLog, line, annotationLogEvery, every), run)
		require.NoError(t, err)
		for {
			record, err := l.next()
			if err == io.EOF {
				return lines, size
			}
			lines, size = lines+1, size+len(record.text)+1
		}
	}
	lines, _ := read("x", "1ns")
	require.Equal(t, maxSimulatedLines, lines)
	lines, size := read(strings.Repeat("x", 8<<10), "1ns")
	require.LessOrEqual(t, size, maxSimulatedLog)
	require.Equal(t, maxSimulatedLog/(8<<10+1), lines)
	lines, _ = read("x", "1h")
	require.Equal(t, 24, lines)
	lines, _ = read("one\ntwo", "not a duration")
	require.Equal(t, 2, lines, "they are written at the start")
}

func TestAmounts_StayNumbersWhateverObjectsSay(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, math.MaxInt64, plus(math.MaxInt64, 1))
	require.EqualValues(t, math.MaxInt64, times(3, math.MaxInt64/2))
	require.Zero(t, times(3, 0))
	require.Equal(t, longest, seconds(math.MaxInt64))
	require.Zero(t, seconds(math.MinInt64))

	pod := boundPod("p", "n")
	pod.Spec.TerminationGracePeriodSeconds = new(int64(math.MaxInt64))
	require.Equal(t, longest, gracePeriodOf(pod))

	var a account
	capacity := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourcePods: resource.MustParse("10")}
	asking := func(name, memory string) *corev1.Pod {
		pod := boundPod(name, "n")
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		return pod
	}
	require.True(t, a.take("one", wantedBy(asking("one", "1Mi")), capacity))
	require.False(t, a.take("two", wantedBy(asking("two", "9223372036854775807")), capacity), "the sum is more than a number holds")
	a.note("old", wantedBy(asking("old", "9223372036854775807")))
	a.note("older", wantedBy(asking("older", "9223372036854775807")))
	require.False(t, a.take("three", wantedBy(asking("three", "1Mi")), capacity), "the node is full")
	a.release("old")
	a.release("older")
	require.True(t, a.take("three", wantedBy(asking("three", "1Mi")), capacity), "there is room again")

	stats, _ := asStats(usage{cpu: 1e6, cpuSeconds: 1e15}, start)
	require.EqualValues(t, uint64(1e15), stats.UsageNanoCores)
	require.EqualValues(t, uint64(1<<63), stats.UsageCoreNanoSeconds)
}
