package node

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// containerRuntime runs containers. It knows nothing of restarts, order or the API: when to run what is the
// pod's state machine's business. It is called by several workers at a time, but never twice at once for
// the same pod.
type containerRuntime interface {
	// version is what a Node says about its runtime: "name://version".
	version() string
	// prepare says how long after its admission a pod's first container may start.
	prepare(pod *corev1.Pod) time.Duration
	// pull fetches a container's image and returns its ID.
	pull(pod *corev1.Pod, c *corev1.Container) (imageID string, err error)
	// start runs a container whose image was pulled. run counts its runs, from 0.
	start(pod *corev1.Pod, c *corev1.Container, run int32, now time.Time) (container, error)
	// adopt takes up a container that an earlier agent started, as its status tells.
	adopt(pod *corev1.Pod, c *corev1.Container, status *corev1.ContainerStatus) (container, error)
}

// container is one run of a container.
type container interface {
	// id is unique: "runtime://...".
	id() string
	// state is how it is at this moment.
	state(now time.Time) containerState
	// stop asks it to end within grace; state tells when it has.
	stop(now time.Time, grace time.Duration)
}

// containerState is how a container is.
type containerState struct {
	ready bool
	// exit is nil while it runs.
	exit *containerExit
	// next is when the state will change by itself; zero where that is not known.
	next time.Time
}

// containerExit is how a container ended.
type containerExit struct {
	code int32
	at   time.Time
}
