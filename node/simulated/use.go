package simulated

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/stream"
)

// Annotations of a pod, or of a Node, that set its simulated logs and resource usage.
const (
	AnnotationLog      = "sim.coxswain.dev/log"
	AnnotationLogEvery = "sim.coxswain.dev/log-every"
	AnnotationCPU      = "sim.coxswain.dev/cpu"
	AnnotationMemory   = "sim.coxswain.dev/memory"
	AnnotationDisk     = "sim.coxswain.dev/disk"
	AnnotationPIDs     = "sim.coxswain.dev/pids"
)

// The default usage of a container: about that of an idle server.
var (
	idleCPU    = resource.MustParse("1m")
	idleMemory = resource.MustParse("8Mi")
)

func (*Runtime) Dial(context.Context, *corev1.Pod, uint16) (net.Conn, error) {
	return nil, errSimulated("connect")
}

func (s *container) Exec(context.Context, []string, *stream.Command) error {
	return errSimulated("execute a command")
}

func (s *container) Attach(context.Context, *stream.Command) error {
	return errSimulated("attach")
}

// Usage returns the same for all containers of the pod.
func (*Runtime) Usage(_ context.Context, pod *corev1.Pod, _ *corev1.Container, started, now time.Time) (
	runtime.Usage, error) {
	u := UsageOf(pod)
	u.CPUSeconds = u.CPU * max(0, now.Sub(started).Seconds())
	return u, nil
}

// UsageOf returns the usage of each container of a pod.
func UsageOf(pod *corev1.Pod) runtime.Usage {
	return annotatedUse(pod.Annotations, runtime.Usage{CPU: idleCPU.AsApproximateFloat64(), Memory: idleMemory.Value(),
		PIDs: 1})
}

// annotatedUse returns u with the values that annotations override.
func annotatedUse(annotations map[string]string, u runtime.Usage) runtime.Usage {
	if len(annotations) == 0 {
		return u
	}
	if q, ok := annotatedQuantity(annotations, AnnotationCPU, maxCPU); ok {
		u.CPU = q.AsApproximateFloat64()
	}
	for _, field := range []struct {
		key    string
		target *int64
		limit  int64
	}{
		{AnnotationMemory, &u.Memory, maxBytes}, {AnnotationDisk, &u.Disk, maxBytes},
		{AnnotationPIDs, &u.PIDs, maxPIDs},
	} {
		if q, ok := annotatedQuantity(annotations, field.key, field.limit); ok {
			*field.target = q.Value()
		}
	}
	return u
}

// OpenLog opens the log of the script or, if it has none, one line that explains the missing output. An empty
// annotation is a log without lines.
func (s *Runtime) OpenLog(pod *corev1.Pod, run *runtime.LogRun) (runtime.LogReader, error) {
	script := s.script(pod)
	text := strings.TrimSuffix(script.Log, "\n")
	if text == "" {
		if _, ok := pod.Annotations[AnnotationLog]; ok {
			return &log{}, nil
		}
		return &log{lines: []string{notice(pod, run.Container)}, run: run, clock: s.Now}, nil
	}
	l := &log{lines: strings.Split(text, "\n"), run: run, clock: s.Now}
	if script.LogEvery > 0 {
		l.every = max(script.LogEvery, shortestLogEvery)
		longest := 0
		for _, line := range l.lines {
			longest = max(longest, len(line)+1)
		}
		l.next = max(0, l.written()-max(1, min(maxLogLines, maxLogBytes/longest)))
	}
	return l, nil
}

// notice returns the line that the log of a container has without a script. Its text is stable.
func notice(pod *corev1.Pod, container string) string {
	image := ""
	for _, c := range runtime.Containers(pod) {
		if c.Name == container {
			image = c.Image
		}
	}
	return fmt.Sprintf("simulated container %s (image %s): no program runs in it, so it writes no log", container,
		image)
}

// log is a function of the time: all lines are written at the start or, with LogEvery, one line after each period,
// starting over after the last.
type log struct {
	lines []string
	every time.Duration
	run   *runtime.LogRun
	clock func() time.Time
	next  int // number of the next record
}

// written returns the number of records written so far.
func (l *log) written() int {
	if l.every <= 0 {
		return len(l.lines)
	}
	end := l.clock()
	if exited, ended := l.run.Ended(); ended {
		end = exited
	}
	return int(max(0, end.Sub(l.run.Started)) / l.every)
}

func (l *log) Next() (runtime.LogRecord, error) {
	if len(l.lines) == 0 || l.next >= l.written() {
		return runtime.LogRecord{}, io.EOF
	}
	i := l.next
	l.next++
	written := l.run.Started
	if l.every > 0 {
		written = written.Add(time.Duration(i+1) * l.every)
	}
	return runtime.LogRecord{At: written, Text: []byte(l.lines[i%len(l.lines)]), Stream: "stdout"}, nil
}

func (*log) Close() error { return nil }

// errSimulated returns the error of an operation that needs a program.
func errSimulated(operation string) error {
	return fmt.Errorf("cannot %s: the container is simulated, no program runs in it (the agent runs programs with "+
		"--runtime process)", operation)
}
