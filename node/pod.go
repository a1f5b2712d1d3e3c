package node

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// The kubelet restarts a container at once, then after 10 s, 20 s, … 5 min; a run of 10 min clears the account.
	restartBackoff    = 10 * time.Second
	maxRestartBackoff = 5 * time.Minute
	goodRun           = 2 * maxRestartBackoff
)

// podState is what the agent knows of a pod: a state machine that is stepped when the pod has changed or
// time has passed. It is worked on by one worker at a time, does no I/O and reads no clock.
//
//	waiting for the runtime → init containers, one after the other → containers → ended
//
// and from anywhere, once stop was called, → ended.
type podState struct {
	pod     *corev1.Pod // as last seen; never changed
	runtime containerRuntime

	startTime time.Time // when the agent took it on
	startAt   time.Time // when the runtime is ready for its first container
	ip        string    // "" until it has one
	hostIP    string
	init      []*containerRun
	app       []*containerRun

	initialized bool
	stopping    bool
	failed      bool // an init container failed for good

	sent    *corev1.PodStatus // the status as last written or read
	written bool              // sent is complete: later writes need only say what is different
	deleted bool              // the DELETE was accepted
	events  []podEvent        // to be recorded
}

// podEvent is an Event that a step gives rise to.
type podEvent struct{ kind, reason, message string }

// containerRun is a container of a pod through all its runs.
type containerRun struct {
	spec    *corev1.Container
	isInit  bool
	running container // nil when it does not run
	imageID string
	id      string // of the run that is on, or was last
	started time.Time
	ready   bool
	run     int32 // how many runs have begun before this one: the restart count

	ended   *corev1.ContainerStateTerminated // how the last run ended, when none is on
	last    *corev1.ContainerStateTerminated // how the run before that ended
	pull    *corev1.ContainerStateWaiting    // what is wrong with its image
	retryAt time.Time                        // not before
	retries int                              // in the present back-off
}

func newPodState(pod *corev1.Pod, r containerRuntime, hostIP string, now time.Time) *podState {
	p := &podState{pod: pod, runtime: r, hostIP: hostIP, startTime: now, startAt: now.Add(r.prepare(pod))}
	for i := range pod.Spec.InitContainers {
		p.init = append(p.init, &containerRun{spec: &pod.Spec.InitContainers[i], isInit: true})
	}
	for i := range pod.Spec.Containers {
		p.app = append(p.app, &containerRun{spec: &pod.Spec.Containers[i]})
	}
	return p
}

// resume takes up a pod that an earlier agent has started, as its status tells.
func (p *podState) resume() {
	status := &p.pod.Status
	p.startTime = status.StartTime.Time
	p.startAt = p.startTime.Add(p.runtime.prepare(p.pod))
	p.ip = status.PodIP
	p.sent = status
	p.written = true
	statuses := append(append([]corev1.ContainerStatus(nil), status.InitContainerStatuses...), status.ContainerStatuses...)
	for _, c := range p.all() {
		for i := range statuses {
			if statuses[i].Name == c.spec.Name {
				c.resume(p, &statuses[i])
			}
		}
	}
}

func (c *containerRun) resume(p *podState, s *corev1.ContainerStatus) {
	c.run, c.id, c.imageID = s.RestartCount, s.ContainerID, s.ImageID
	c.last = s.LastTerminationState.Terminated
	switch {
	case s.State.Running != nil:
		c.started = s.State.Running.StartedAt.Time
		running, err := p.runtime.adopt(p.pod, c.spec, s)
		if err != nil { // it did not survive: it counts as a run that failed
			c.ended = &corev1.ContainerStateTerminated{
				ExitCode: 137, Reason: "ContainerStatusUnknown", Message: err.Error(),
				StartedAt: s.State.Running.StartedAt, ContainerID: s.ContainerID,
			}
			return
		}
		c.running, c.ready = running, s.Ready
	case s.State.Terminated != nil:
		c.ended = s.State.Terminated
	case c.last != nil: // it waits to be started again
		c.ended, c.last = c.last, nil
		c.retries = int(c.run)
		c.retryAt = c.ended.FinishedAt.Add(restartDelay(c.retries))
	}
}

func (p *podState) all() []*containerRun {
	return append(append(make([]*containerRun, 0, len(p.init)+len(p.app)), p.init...), p.app...)
}

// stop begins the pod's end: nothing is started any more.
func (p *podState) stop(now time.Time, grace time.Duration) {
	p.stopping = true
	for _, c := range p.all() {
		if c.running != nil {
			c.running.stop(now, grace)
		}
	}
}

// step takes all steps that are due and returns when the next one will be; zero where only a change of the pod can bring it.
func (p *podState) step(now time.Time) (next time.Time) {
	w := wake{}
	for _, c := range p.all() {
		c.observe(now, &w)
	}
	switch {
	case p.stopping || p.ended():
	case now.Before(p.startAt):
		w.at(p.startAt)
	case p.runInit(now, &w):
		for _, c := range p.app {
			p.advance(c, now, &w)
		}
	}
	if p.ended() && !p.stopping { // sidecars do not outlive the work
		p.stop(now, 0)
		for _, c := range p.init {
			c.observe(now, &w)
		}
	}
	return w.next
}

// wake is the earliest of several moments.
type wake struct{ next time.Time }

func (w *wake) at(t time.Time) {
	if !t.IsZero() && (w.next.IsZero() || t.Before(w.next)) {
		w.next = t
	}
}

// runInit runs init containers in their order and reports whether the pod is initialized. Once it is, only
// sidecars still need looking after.
func (p *podState) runInit(now time.Time, w *wake) bool {
	for _, c := range p.init {
		if p.initialized && !isSidecar(c.spec) {
			continue
		}
		passed := p.advance(c, now, w)
		if c.ended != nil && c.ended.ExitCode != 0 && !p.restarts(c) {
			p.failed = true
			return false
		}
		if !passed && !p.initialized {
			return false
		}
	}
	p.initialized = true
	return true
}

// advance starts a container if it should run, and reports whether the next one may start: an init
// container has to have succeeded, a sidecar has to have started.
func (p *podState) advance(c *containerRun, now time.Time, w *wake) bool {
	for {
		switch {
		case c.running != nil:
			return isSidecar(c.spec)
		case c.ended != nil && !p.restarts(c):
			return c.ended.ExitCode == 0
		case now.Before(c.retryAt):
			w.at(c.retryAt)
			return false
		case !p.start(c, now):
			w.at(c.retryAt)
			return false
		}
		c.observe(now, w) // it may have ended already, and may be due again
		if c.ended != nil && p.restarts(c) && now.Before(c.retryAt) {
			p.event(corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container %s in pod %s_%s(%s)",
				c.spec.Name, p.pod.Name, p.pod.Namespace, p.pod.UID)
		}
	}
}

// start pulls and starts; on failure it sets when to try again.
func (p *podState) start(c *containerRun, now time.Time) bool {
	imageID, err := p.runtime.pull(p.pod, c.spec)
	if err != nil {
		c.pullFailed(p, err, now)
		return false
	}
	run := c.run
	if c.ended != nil {
		run++
	}
	running, err := p.runtime.start(p.pod, c.spec, run, now)
	if err != nil {
		c.retries++
		c.retryAt = now.Add(restartDelay(c.retries))
		c.pull = &corev1.ContainerStateWaiting{Reason: "RunContainerError", Message: err.Error()}
		p.event(corev1.EventTypeWarning, "Failed", "Error: %v", err)
		return false
	}
	if c.pull != nil { // the account of a broken image is not that of a crashing program
		c.pull, c.retries = nil, 0
	}
	if c.ended != nil {
		c.last, c.ended = c.ended, nil
	}
	c.run, c.running, c.id, c.imageID, c.started = run, running, running.id(), imageID, now
	return true
}

func (c *containerRun) pullFailed(p *podState, err error, now time.Time) {
	c.retries++
	c.retryAt = now.Add(restartDelay(c.retries))
	if c.pull == nil || c.pull.Reason != "ImagePullBackOff" {
		c.pull = &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: err.Error()}
		if c.retries > 1 {
			c.pull = &corev1.ContainerStateWaiting{
				Reason: "ImagePullBackOff", Message: fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %v", c.spec.Image, err),
			}
		}
	}
	p.event(corev1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", c.spec.Image, err)
}

// observe takes note of what became of a run.
func (c *containerRun) observe(now time.Time, w *wake) {
	if c.running == nil {
		return
	}
	state := c.running.state(now)
	c.ready = state.ready
	w.at(state.next)
	if state.exit == nil {
		return
	}
	c.ended = &corev1.ContainerStateTerminated{
		ExitCode: state.exit.code, Reason: "Completed",
		StartedAt: metav1.NewTime(c.started), FinishedAt: metav1.NewTime(state.exit.at), ContainerID: c.id,
	}
	if state.exit.code != 0 {
		c.ended.Reason = "Error"
	}
	c.running, c.ready = nil, false
	if state.exit.at.Sub(c.started) >= goodRun {
		c.retries = 0
	}
	c.retryAt = state.exit.at.Add(restartDelay(c.retries))
	c.retries++
}

// restartDelay is how long to wait before the next try after so many.
func restartDelay(retries int) time.Duration {
	if retries == 0 {
		return 0
	}
	d := restartBackoff
	for i := 1; i < retries && d < maxRestartBackoff; i++ {
		d *= 2
	}
	return min(d, maxRestartBackoff)
}

// restarts reports whether a container that ended is to run again.
func (p *podState) restarts(c *containerRun) bool {
	if p.stopping || c.ended == nil {
		return false
	}
	policy := p.pod.Spec.RestartPolicy
	if c.spec.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.spec.RestartPolicy)
	}
	switch {
	case policy == corev1.RestartPolicyNever:
		return false
	case policy == corev1.RestartPolicyOnFailure, c.isInit && !isSidecar(c.spec):
		return c.ended.ExitCode != 0
	default:
		return true
	}
}

// ended reports that nothing of the pod's work runs or will run again.
func (p *podState) ended() bool {
	if p.failed {
		return true
	}
	for _, c := range p.app {
		if c.running != nil || !p.stopping && (c.ended == nil || p.restarts(c)) {
			return false
		}
	}
	return true
}

// stopped reports that no container runs any more.
func (p *podState) stopped() bool {
	for _, c := range p.all() {
		if c.running != nil {
			return false
		}
	}
	return true
}

func (p *podState) event(kind, reason, format string, args ...any) {
	p.events = append(p.events, podEvent{kind, reason, fmt.Sprintf(format, args...)})
}
