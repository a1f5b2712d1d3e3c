package node

import (
	"context"
	"io"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/coxswain-dev/coxswain/bounds"
	"github.com/coxswain-dev/coxswain/node/stream"
)

// What a simulated pod is said to write and to take. Quantities are Kubernetes'.
const (
	annotationLog      = "sim.coxswain.dev/log"
	annotationLogEvery = "sim.coxswain.dev/log-every"
	annotationCPU      = "sim.coxswain.dev/cpu"
	annotationMemory   = "sim.coxswain.dev/memory"
	annotationDisk     = "sim.coxswain.dev/disk"
	annotationPIDs     = "sim.coxswain.dev/pids"
)

// maxSimulatedLines is how much of an endless log is kept.
const maxSimulatedLines = 10_000

// What a container takes whose pod does not say: about as much as a server that has nothing to do.
var (
	idleCPU    = resource.MustParse("1m")
	idleMemory = resource.MustParse("8Mi")
)

func (*simulated) dial(context.Context, *corev1.Pod, uint16) (net.Conn, error) {
	return nil, errSimulated("connect")
}

func (s *simulatedContainer) exec(context.Context, []string, *stream.Command) error {
	return errSimulated("execute a command")
}

func (s *simulatedContainer) attach(context.Context, *stream.Command) error {
	return errSimulated("attach")
}

// usage is the same for all containers of the pod.
func (*simulated) usage(pod *corev1.Pod, _ *corev1.Container, started, now time.Time) (usage, error) {
	u := simulatedUse(pod)
	u.cpuSeconds = u.cpu * max(0, now.Sub(started).Seconds())
	return u, nil
}

// simulatedUse is what each container of a pod takes.
func simulatedUse(pod *corev1.Pod) usage {
	return annotatedUse(pod.Annotations, usage{cpu: idleCPU.AsApproximateFloat64(), memory: idleMemory.Value(), pids: 1})
}

// annotatedUse is a usage with what annotations say in place of parts of it.
func annotatedUse(annotations map[string]string, u usage) usage {
	if len(annotations) == 0 {
		return u
	}
	set := func(key string, to *int64) {
		if q, err := bounds.ParseQuantity(annotations[key]); err == nil && q.Sign() >= 0 {
			*to = q.Value()
		}
	}
	if q, err := bounds.ParseQuantity(annotations[annotationCPU]); err == nil {
		u.cpu = q.AsApproximateFloat64()
	}
	set(annotationMemory, &u.memory)
	set(annotationDisk, &u.disk)
	set(annotationPIDs, &u.pids)
	return u
}

func (s *simulated) openLog(pod *corev1.Pod, run *logRun) (logReader, error) {
	text := strings.TrimSuffix(pod.Annotations[annotationLog], "\n")
	if text == "" {
		return &simulatedLog{}, nil
	}
	l := &simulatedLog{lines: strings.Split(text, "\n"), run: run, clock: s.now}
	l.every, _ = annotatedDuration(pod, annotationLogEvery)
	if written := l.written(); written > maxSimulatedLines {
		l.at = written - maxSimulatedLines
	}
	return l, nil
}

// simulatedLog is a function of the time: the annotation's lines at the start or, with log-every, one of
// them after each such time, from the first again after the last.
type simulatedLog struct {
	lines []string
	every time.Duration
	run   *logRun
	clock func() time.Time
	at    int
}

// written is how many lines there are at this moment.
func (l *simulatedLog) written() int {
	if l.every <= 0 {
		return len(l.lines)
	}
	end := l.clock()
	if at, ended := l.run.ended(); ended {
		end = at
	}
	return int(end.Sub(l.run.started) / l.every)
}

func (l *simulatedLog) next() (logRecord, error) {
	if len(l.lines) == 0 || l.at >= l.written() {
		return logRecord{}, io.EOF
	}
	i := l.at
	l.at++
	at := l.run.started
	if l.every > 0 {
		at = at.Add(time.Duration(i+1) * l.every)
	}
	return logRecord{at: at, text: []byte(l.lines[i%len(l.lines)]), stream: "stdout"}, nil
}

func (*simulatedLog) Close() error { return nil }
