package simulated

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

var someTime = time.Unix(1_800_000_000, 0)

// annotatedPod is a pod of one container, with annotations and their values.
func annotatedPod(annotations ...string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.UID, pod.Spec.Containers = "uid", []corev1.Container{{Name: "c", Image: "nginx:1"}}
	pod.Annotations = map[string]string{}
	for i := 0; i < len(annotations); i += 2 {
		pod.Annotations[annotations[i]] = annotations[i+1]
	}
	return pod
}

func TestAnnotations_ClampValuesToBounds(t *testing.T) {
	t.Parallel()
	run := func(annotations ...string) *container {
		pod := annotatedPod(annotations...)
		return new(Runtime).newContainer(pod, &pod.Spec.Containers[0], "id", 0, someTime)
	}
	require.Equal(t, someTime.Add(longest), run(AnnotationReadyAfter, "2000000h").readyAt)
	require.Equal(t, someTime, run(AnnotationReadyAfter, "-1s").readyAt)
	require.Equal(t, someTime.Add(longest), run(AnnotationRunFor, "2000000h").endsAt)
	require.Equal(t, longest, run(AnnotationReadyFor, "2000000h").off)
	require.EqualValues(t, 255, run(AnnotationExitCode, "4000000000").code)
	require.EqualValues(t, 0, run(AnnotationExitCode, "-1").code)
	require.EqualValues(t, 1, run(AnnotationFailures, "99999999999999999999").code)
	require.False(t, run(AnnotationExitCode, "many").ends, "what is no number is as if it were not there")

	use := func(annotations ...string) runtime.Usage { return UsageOf(annotatedPod(annotations...)) }
	all := use(AnnotationCPU, "999E", AnnotationMemory, "999Ei", AnnotationDisk, "999Ei", AnnotationPIDs, "999E")
	require.Equal(t, runtime.Usage{CPU: 1_000_000, Memory: 1 << 50, Disk: 1 << 50, PIDs: 1 << 22}, all)
	require.Equal(t, runtime.Usage{}, use(AnnotationCPU, "-1", AnnotationMemory, "-1", AnnotationDisk, "-1",
		AnnotationPIDs, "-1"))

	_, err := (&Runtime{}).Pull(t.Context(), runtime.PullRequest{
		Pod: annotatedPod(AnnotationImagePullError, strings.Repeat("é", 1000))})
	require.EqualError(t, err, strings.Repeat("é", 512))
	node := &corev1.Node{}
	node.Annotations = map[string]string{AnnotationSlow: "9000h"}
	require.Equal(t, time.Hour, BehaviourOf(node).Slow)
}

func TestCompleteAfter_EndsContainersThatAreNotRestarted(t *testing.T) {
	t.Parallel()
	r := &Runtime{Options{CompleteAfter: new(time.Second)}}
	always, never := corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever
	for name, tt := range map[string]struct {
		pod       corev1.RestartPolicy
		container *corev1.ContainerRestartPolicy
		said      []string
		after     time.Duration // Forever if it runs until it is stopped
		code      int32
	}{
		"a server":                       {corev1.RestartPolicyAlways, nil, nil, Forever, 0},
		"a server by default":            {"", nil, nil, Forever, 0},
		"a task":                         {corev1.RestartPolicyNever, nil, nil, time.Second, 0},
		"a task that is tried again":     {corev1.RestartPolicyOnFailure, nil, nil, time.Second, 0},
		"a server beside a task":         {corev1.RestartPolicyNever, &always, nil, Forever, 0},
		"one run in a server's pod":      {corev1.RestartPolicyAlways, &never, nil, Forever, 0},
		"its own time":                   {corev1.RestartPolicyNever, nil, []string{AnnotationRunFor, "1h"}, time.Hour, 0},
		"at once":                        {corev1.RestartPolicyNever, nil, []string{AnnotationRunFor, "0s"}, 0, 0},
		"no end":                         {corev1.RestartPolicyNever, nil, []string{AnnotationRunFor, "forever"}, Forever, 0},
		"no number":                      {corev1.RestartPolicyNever, nil, []string{AnnotationRunFor, "long"}, time.Second, 0},
		"a code ends at once":            {corev1.RestartPolicyNever, nil, []string{AnnotationExitCode, "3"}, 0, 3},
		"a code that is not reached":     {corev1.RestartPolicyNever, nil, []string{AnnotationExitCode, "3", AnnotationRunFor, "forever"}, Forever, 3},
		"a run after those that fail":    {corev1.RestartPolicyOnFailure, nil, []string{AnnotationFailures, "1"}, time.Second, 0},
		"the first of those that failed": {corev1.RestartPolicyOnFailure, nil, []string{AnnotationFailures, "2"}, 0, 1},
	} {
		pod := annotatedPod(tt.said...)
		pod.Spec.RestartPolicy, pod.Spec.Containers[0].RestartPolicy = tt.pod, tt.container
		c := r.newContainer(pod, &pod.Spec.Containers[0], "id", 1, someTime)
		require.Equal(t, tt.after != Forever, c.ends, name)
		require.EqualValues(t, tt.code, c.code, name)
		if c.ends {
			require.Equal(t, someTime.Add(tt.after), c.endsAt, name)
		}
	}
	pod := annotatedPod()
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.InitContainers = []corev1.Container{{Name: "sidecar", RestartPolicy: &always}}
	require.False(t, r.newContainer(pod, &pod.Spec.InitContainers[0], "id", 0, someTime).ends)
	require.False(t, new(Runtime).newContainer(pod, &pod.Spec.Containers[0], "id", 0, someTime).ends)
}

func TestLog_IsBounded(t *testing.T) {
	t.Parallel()
	read := func(line, every string) (lines, size int) {
		s := &Runtime{Options{Now: func() time.Time { return someTime.Add(24 * time.Hour) }}}
		run := &runtime.LogRun{Started: someTime, Ended: func() (time.Time, bool) { return time.Time{}, false }}
		l, err := s.OpenLog(annotatedPod(AnnotationLog, line, AnnotationLogEvery, every), run)
		require.NoError(t, err)
		for {
			record, err := l.Next()
			if err == io.EOF {
				return lines, size
			}
			lines, size = lines+1, size+len(record.Text)+1
		}
	}
	lines, _ := read("x", "1ns")
	require.Equal(t, maxLogLines, lines)
	lines, size := read(strings.Repeat("x", 8<<10), "1ns")
	require.LessOrEqual(t, size, maxLogBytes)
	require.Equal(t, maxLogBytes/(8<<10+1), lines)
	lines, _ = read("x", "1h")
	require.Equal(t, 24, lines)
	lines, _ = read("one\ntwo", "not a duration")
	require.Equal(t, 2, lines, "they are written at the start")
}

func TestLog_SaysThatAContainerIsSimulated(t *testing.T) {
	t.Parallel()
	read := func(pod *corev1.Pod, container string) (lines []string) {
		run := &runtime.LogRun{Container: container, Started: someTime}
		l, err := new(Runtime).OpenLog(pod, run)
		require.NoError(t, err)
		for {
			record, err := l.Next()
			if err == io.EOF {
				return lines
			}
			require.Equal(t, someTime, record.At)
			lines = append(lines, string(record.Text))
		}
	}
	pod := annotatedPod()
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "busybox"}}
	require.Equal(t, []string{"simulated container c (image nginx:1): no program runs in it, so it writes no log"},
		read(pod, "c"))
	require.Equal(t, []string{"simulated container init (image busybox): no program runs in it, so it writes no log"},
		read(pod, "init"))
	require.Equal(t, []string{"own"}, read(annotatedPod(AnnotationLog, "own"), "c"))
	require.Empty(t, read(annotatedPod(AnnotationLog, ""), "c"))
}

func TestScript_StartsFromAnnotations(t *testing.T) {
	t.Parallel()
	r := &Runtime{Options{StartDelay: time.Second, Script: func(pod *corev1.Pod, s *Script) {
		if pod.Annotations[AnnotationReadyAfter] == "1m" {
			s.ReadyAfter *= 2
			s.StartDelay = 0
			s.ExitCode, s.Failures = new(int32(3)), new(int64(1))
			s.ImagePullError = errors.New("no such image")
			s.Log = "hello\n"
		}
	}, Now: func() time.Time { return someTime }}}
	scripted, other := annotatedPod(AnnotationReadyAfter, "1m"), annotatedPod(AnnotationRunFor, "1m")
	c := &scripted.Spec.Containers[0]
	require.Zero(t, r.Delay(scripted))
	require.Equal(t, time.Second, r.Delay(other))
	_, err := r.Pull(t.Context(), runtime.PullRequest{Pod: scripted, Image: c.Image})
	require.EqualError(t, err, "no such image")
	first, second := r.newContainer(scripted, c, "id", 0, someTime), r.newContainer(scripted, c, "id", 1, someTime)
	require.Equal(t, someTime.Add(2*time.Minute), first.readyAt)
	require.EqualValues(t, []int32{3, 0}, []int32{first.code, second.code})
	require.Equal(t, someTime.Add(time.Minute), r.newContainer(other, c, "id", 0, someTime).endsAt)
	lines, err := r.OpenLog(scripted, &runtime.LogRun{Started: someTime})
	require.NoError(t, err)
	line, err := lines.Next()
	require.NoError(t, err)
	require.Equal(t, "hello", string(line.Text))
}

// The agent may stop a container while others read its state.
func TestContainer_IsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	pod := annotatedPod(AnnotationRunFor, "1h")
	c := new(Runtime).newContainer(pod, &pod.Spec.Containers[0], "id", 0, someTime)
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			c.Stop(someTime.Add(time.Duration(i)*time.Second), 0)
			exit := c.State(someTime).Exit
			assert.EqualValues(t, 143, exit.Code)
			assert.Same(t, exit, c.State(someTime.Add(2*time.Hour)).Exit, "the first call counts")
		})
	}
	running.Wait()
}
