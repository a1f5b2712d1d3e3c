package node

import (
	"context"
	"fmt"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/stream"
)

// containerRuntime runs containers. It knows nothing of restarts, order or the API: when to run what is the
// pod's state machine's business. It is called by several workers at a time, but never twice at once for
// the same pod, except for what serves streams and logs: dial, openLog and usage are safe for concurrent use.
type containerRuntime interface {
	// version is what a Node says about its runtime: "name://version".
	version() string
	// prepare says how long after its admission a pod's first container may start.
	prepare(pod *corev1.Pod) time.Duration
	// setUp prepares what the containers of a pod share, before the first of them starts, and keeps it up to date when
	// it is called again. again says when that should be; zero is never. A *setUpError names its Event.
	setUp(ctx context.Context, pod *corev1.Pod, ip string) (again time.Duration, err error)
	// tearDown ends whatever runs of a pod. Its logs stay until forget, which leaves nothing. Both may be repeated.
	tearDown(pod *corev1.Pod) error
	forget(uid types.UID) error
	// sweep forgets pods of an earlier agent that are not known any more.
	sweep(known func(types.UID) bool)
	// pull fetches a container's image and returns its ID.
	pull(pod *corev1.Pod, c *corev1.Container) (imageID string, err error)
	// start runs a container whose image was pulled. run counts its runs, from 0.
	start(pod *corev1.Pod, c *corev1.Container, run int32, now time.Time) (container, error)
	// adopt takes up a container that an earlier agent started, as its status tells.
	adopt(pod *corev1.Pod, c *corev1.Container, status *corev1.ContainerStatus) (container, error)
	// dial connects to a port of a pod, as from within.
	dial(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error)
	// openLog reads what a run of a container wrote, from the beginning.
	openLog(pod *corev1.Pod, run *logRun) (logReader, error)
	// usage is what a container that has run since started takes at this moment.
	usage(pod *corev1.Pod, c *corev1.Container, started, now time.Time) (usage, error)
}

// container is one run of a container. exec and attach are safe for concurrent use.
type container interface {
	// id is unique: "runtime://...".
	id() string
	// state is how it is at this moment.
	state(now time.Time) containerState
	// stop asks it to end within grace; state tells when it has.
	stop(now time.Time, grace time.Duration)
	// resize gives it the resources of its spec as it is now, while it runs.
	resize(spec *corev1.Container) error
	// exec runs a command beside it until it ends or ctx does; a *stream.ExitError says how.
	exec(ctx context.Context, argv []string, c *stream.Command) error
	// attach joins its own streams until it ends or ctx does.
	attach(ctx context.Context, c *stream.Command) error
}

// containerState is how a container is.
type containerState struct {
	ready bool
	// starting is true until a startup probe and a postStart hook have succeeded.
	starting bool
	// exit is nil while it runs.
	exit *containerExit
	// next is when the state will change by itself; zero where that is not known.
	next time.Time
}

// containerExit is how a container ended.
type containerExit struct {
	code int32
	at   time.Time
	// reason is said in place of Completed or Error, and message is the container's own.
	reason, message string
}

// setUpError is why a pod cannot be prepared, and the reason of the Event that says so.
type setUpError struct {
	reason string
	error
}

func (e *setUpError) Unwrap() error { return e.error }

// usage is what something takes of a machine.
type usage struct {
	cpu        float64 // cores, lately
	cpuSeconds float64 // since its start
	memory     int64   // bytes of its working set
	disk       int64   // bytes; the process runtime tells those of pods only
	pids       int64   // processes and threads
}

func (u *usage) add(o usage) {
	u.cpu += o.cpu
	u.cpuSeconds += o.cpuSeconds
	u.memory = plus(u.memory, o.memory)
	u.disk = plus(u.disk, o.disk)
	u.pids = plus(u.pids, o.pids)
}

// logRun says which run's log is meant. Restarts count from 0.
type logRun struct {
	container string
	run       int32
	started   time.Time
	ended     func() (at time.Time, ended bool) // asked again while the log is followed
}

// logReader reads a log record by record. It is not safe for concurrent use.
type logReader interface {
	// next is the next record, and io.EOF where there is none yet. The text is valid until the next call.
	next() (logRecord, error)
	Close() error
}

// logRecord is a line, or the part of one that was written when there was enough of it.
type logRecord struct {
	at      time.Time
	text    []byte
	stream  string // "stdout" or "stderr"
	partial bool   // more of the line follows
}

// errSimulated is the answer to who wants something of a program that does not run.
func errSimulated(what string) error {
	return fmt.Errorf("cannot %s: the container is simulated, no program runs in it (the agent runs programs with --runtime process)", what)
}
