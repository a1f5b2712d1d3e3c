package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/runtime"
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
	mu      sync.Mutex  // held by the worker, and by readers of what follows
	pod     *corev1.Pod // as last seen; never changed
	runtime runtime.Runtime

	startTime time.Time // when the agent took it on
	startAt   time.Time // when the runtime is ready for its first container
	addresses []string  // none until it has some
	hostIP    string
	init      []*containerRun
	app       []*containerRun
	ephemeral []*containerRun

	setUp   bool        // the runtime is prepared
	setUpAt time.Time   // when to prepare it anew; zero is never
	setUpOf time.Time   // when that was done last
	stale   atomic.Bool // it is to be prepared anew as soon as that may be; set without the lock

	resize resizing

	refused     bool // it may not run here, and never had containers
	initialized bool
	stopping    bool
	stopBy      time.Time // when what still runs is to be killed
	failed      bool      // an init container failed for good
	reason      string    // why the agent ended the pod, if it did
	message     string
	disruption  *corev1.PodCondition // that the node ended it, when it has ended

	sent        *corev1.PodStatus // the status as last written or read
	sentVersion string            // the pod's resourceVersion with it
	written     bool              // sent is complete: later writes need only say what is different
	deleted     bool              // the DELETE was accepted
	events      []podEvent        // to be recorded
}

// podEvent is an Event that a step gives rise to.
type podEvent struct{ kind, reason, message string }

// containerRun is a container of a pod through all its runs.
type containerRun struct {
	spec     *corev1.Container
	isInit   bool
	once     bool              // an ephemeral container, which never runs again
	running  runtime.Container // nil when it does not run
	imageID  string
	id       string // of the run that is on, or was last
	started  time.Time
	ready    bool
	starting bool
	run      int32 // how many runs have begun before this one: the restart count

	actual  *corev1.ResourceRequirements // what the run that is on, or was last, has; never changed
	restart bool                         // it is stopped to be started with other resources or another image

	ended   *corev1.ContainerStateTerminated // how the last run ended, when none is on
	last    *corev1.ContainerStateTerminated // how the run before that ended
	pull    *corev1.ContainerStateWaiting    // what is wrong with its image
	retryAt time.Time                        // not before
	retries int                              // in the present back-off
}

func newPodState(pod *corev1.Pod, r runtime.Runtime, hostIP string, now time.Time) *podState {
	p := &podState{pod: pod, runtime: r, hostIP: hostIP, startTime: now, startAt: now.Add(r.Delay(pod))}
	p.resize = resizing{generation: pod.Generation, podLevel: pod.Spec.Resources}
	pod = allocatedPod(pod)
	for i := range pod.Spec.InitContainers {
		p.init = append(p.init, &containerRun{spec: &pod.Spec.InitContainers[i], isInit: true})
	}
	for i := range pod.Spec.Containers {
		p.app = append(p.app, &containerRun{spec: &pod.Spec.Containers[i]})
	}
	p.addEphemeral()
	return p
}

// addEphemeral notes ephemeral containers that have come to the pod.
func (p *podState) addEphemeral() {
	for i := len(p.ephemeral); i < len(p.pod.Spec.EphemeralContainers); i++ {
		c := corev1.Container(p.pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		p.ephemeral = append(p.ephemeral, &containerRun{spec: &c, once: true})
	}
}

// resume takes up a pod that an earlier agent has started, from its status.
func (p *podState) resume() {
	status := &p.pod.Status
	p.startTime = status.StartTime.Time
	p.startAt = p.startTime.Add(p.runtime.Delay(p.pod))
	p.addresses = addressesOf(status)
	p.sent, p.sentVersion = p.own(status), p.pod.ResourceVersion
	p.written = true
	statuses := slices.Concat(status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses)
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
	if c.actual = s.Resources; c.actual == nil {
		c.actual = &c.spec.Resources
	}
	p.resize.begun = p.resize.begun || !sameAmounts(c.actual, &c.spec.Resources)
	switch {
	case s.State.Running != nil:
		c.started = s.State.Running.StartedAt.Time
		if s.Image != "" {
			c.setImage(s.Image) // the spec may have got another while no agent was there
		}
		running, err := p.runtime.Adopt(context.Background(), p.pod, c.spec, s)
		if err != nil { // it did not survive: it counts as a run that failed
			c.ended = &corev1.ContainerStateTerminated{
				ExitCode: 137, Reason: "ContainerStatusUnknown", Message: err.Error(),
				StartedAt: s.State.Running.StartedAt, ContainerID: s.ContainerID,
			}
			return
		}
		c.running, c.ready, c.starting = running, s.Ready, s.Started != nil && !*s.Started
	case s.State.Terminated != nil:
		c.ended = s.State.Terminated
	case c.last != nil: // it waits to be started again
		c.ended, c.last = c.last, nil
		c.retries = int(c.run)
		c.retryAt = c.ended.FinishedAt.Add(restartDelay(c.retries))
	}
}

func (p *podState) all() []*containerRun {
	return slices.Concat(p.init, p.app, p.ephemeral)
}

// stop begins the pod's end: nothing is started any more.
func (p *podState) stop(now time.Time, grace time.Duration) {
	p.stopping, p.stopBy = true, now.Add(grace)
	p.stopNext(now, &wake{})
}

// stopNext stops the containers and, when they have ended, the sidecars, the last to be started first. All have one
// grace period.
func (p *podState) stopNext(now time.Time, w *wake) {
	grace := max(0, p.stopBy.Sub(now))
	busy := false
	for _, c := range p.all() {
		if c.running != nil && !(c.isInit && runtime.IsSidecar(c.spec)) {
			c.running.Stop(now, grace)
			c.observe(now, w)
			busy = busy || c.running != nil
		}
	}
	for i := len(p.init) - 1; i >= 0 && !busy; i-- {
		if c := p.init[i]; c.running != nil {
			c.running.Stop(now, grace)
			c.observe(now, w)
			busy = c.running != nil
		}
	}
}

// end ends the pod for a reason of the agent's.
func (p *podState) end(reason, message string, now time.Time, grace time.Duration) {
	p.reason, p.message = reason, message
	p.stop(now, grace)
}

// checkDeadline ends a pod that has been active for too long.
func (p *podState) checkDeadline(now time.Time, w *wake) {
	d := p.pod.Spec.ActiveDeadlineSeconds
	if d == nil || p.stopping || p.ended() {
		return
	}
	at := p.startTime.Add(amount.Seconds(*d))
	if now.Before(at) {
		w.at(at)
		return
	}
	p.event(corev1.EventTypeNormal, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
	p.end("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", now,
		runtime.GracePeriod(p.pod))
}

// step takes all steps that are due and returns when the next one will be; zero where only a change of the
// pod can bring it.
func (p *podState) step(now time.Time) (next time.Time) {
	w := wake{}
	p.addEphemeral()
	for _, c := range p.all() {
		c.observe(now, &w)
	}
	p.checkDeadline(now, &w)
	if !p.stopping {
		p.replaceImages(now, &w)
		p.actuate(now, &w)
	}
	switch {
	case p.stopping:
		p.stopNext(now, &w)
	case p.ended():
	case now.Before(p.startAt):
		w.at(p.startAt)
	default:
		p.runAll(now, &w)
	}
	if p.ended() && !p.stopping { // sidecars do not outlive the work
		p.stop(now, runtime.GracePeriod(p.pod))
		p.stopNext(now, &w)
	}
	return w.next
}

// replaceImages brings containers to the images of the spec, which the API lets change. Like the kubelet, it restarts a
// running container whatever its restartPolicy; others get the image when they start next.
func (p *podState) replaceImages(now time.Time, w *wake) {
	replace := func(c *containerRun, image string) {
		if c.spec.Image == image || c.once {
			return
		}
		if c.running != nil && c.isInit && !runtime.IsSidecar(c.spec) {
			return // it has one run, which is on
		}
		if c.running != nil {
			if !c.restart {
				p.event(corev1.EventTypeNormal, "Killing", "Container %s definition changed, will be restarted",
					c.spec.Name)
			}
			c.restart = true
			c.running.Stop(now, runtime.GracePeriod(p.pod))
			c.observe(now, w)
		}
		if c.running != nil {
			return // it is still ending
		}
		c.setImage(image)
		if c.pull != nil { // the account of a broken image is not that of another
			c.retries, c.retryAt = 0, now
		}
	}
	for i, c := range p.init {
		if i < len(p.pod.Spec.InitContainers) {
			replace(c, p.pod.Spec.InitContainers[i].Image)
		}
	}
	for i, c := range p.app {
		if i < len(p.pod.Spec.Containers) {
			replace(c, p.pod.Spec.Containers[i].Image)
		}
	}
}

func (c *containerRun) setImage(image string) {
	spec := *c.spec // others hold the old one
	spec.Image = image
	c.spec = &spec
}

func (p *podState) runAll(now time.Time, w *wake) {
	for _, c := range p.ephemeral {
		p.advance(c, now, w)
	}
	if p.runInit(now, w) {
		for _, c := range p.app {
			p.advance(c, now, w)
		}
	}
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
		if p.initialized && !runtime.IsSidecar(c.spec) {
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
			return runtime.IsSidecar(c.spec) && !c.starting
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
	image, err := p.runtime.Pull(context.Background(), runtime.PullRequest{Pod: p.pod, Image: c.spec.Image,
		Policy: c.spec.ImagePullPolicy, Progress: func() {}})
	if err != nil {
		c.pullFailed(p, err, now)
		return false
	}
	run := c.run
	if c.ended != nil {
		run++
	}
	running, err := p.runtime.Start(context.Background(), p.pod, c.spec, run, now)
	if err != nil {
		p.startFailed(c, run, err, now)
		return false
	}
	if c.pull != nil { // the account of a broken image is not that of a crashing program
		c.pull, c.retries = nil, 0
	}
	if c.ended != nil {
		c.last, c.ended = c.ended, nil
	}
	c.run, c.running, c.id, c.imageID, c.started = run, running, running.ID(), image.ID, now
	c.actual, c.restart = &c.spec.Resources, false
	return true
}

// startFailed notes that a container did not start. Where its own command is at fault, that was a run.
func (p *podState) startFailed(c *containerRun, run int32, err error, now time.Time) {
	p.event(corev1.EventTypeWarning, "Failed", "Error: %v", err)
	var command runtime.StartError
	var config runtime.ConfigError
	switch {
	case errors.As(err, &command):
		if c.ended != nil {
			c.last = c.ended
		}
		c.pull, c.run = nil, run
		c.ended = &corev1.ContainerStateTerminated{
			ExitCode: 128, Reason: "StartError", Message: err.Error(), StartedAt: metav1.NewTime(time.Unix(0, 0)),
			FinishedAt: metav1.NewTime(now),
		}
		c.retryAt = now.Add(restartDelay(c.retries))
		c.retries++
		return
	case errors.As(err, &config):
		c.pull = &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: err.Error()}
	default:
		c.pull = &corev1.ContainerStateWaiting{Reason: "RunContainerError", Message: err.Error()}
	}
	c.retries++
	c.retryAt = now.Add(restartDelay(c.retries))
}

func (c *containerRun) pullFailed(p *podState, err error, now time.Time) {
	c.retries++
	c.retryAt = now.Add(restartDelay(c.retries))
	if c.pull == nil || c.pull.Reason != "ImagePullBackOff" {
		c.pull = &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: err.Error()}
		if c.retries > 1 {
			c.pull = &corev1.ContainerStateWaiting{
				Reason: "ImagePullBackOff", Message: fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %v",
					c.spec.Image, err),
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
	state := c.running.State(now)
	c.ready, c.starting = state.Ready, state.Starting
	w.at(state.Next)
	if state.Exit == nil {
		return
	}
	c.ended = &corev1.ContainerStateTerminated{
		ExitCode: state.Exit.Code, Reason: "Completed", Message: state.Exit.Message,
		StartedAt: metav1.NewTime(c.started), FinishedAt: metav1.NewTime(state.Exit.At), ContainerID: c.id,
	}
	if state.Exit.Code != 0 {
		c.ended.Reason = "Error"
	}
	if state.Exit.Reason != "" {
		c.ended.Reason = state.Exit.Reason
	}
	c.running, c.ready = nil, false
	if state.Exit.At.Sub(c.started) >= goodRun {
		c.retries = 0
	}
	if c.restart {
		return // at once, and not because it crashed
	}
	c.retryAt = state.Exit.At.Add(restartDelay(c.retries))
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
	if p.stopping || c.ended == nil || c.once {
		return false
	}
	if c.restart {
		return true
	}
	if ruled(c.spec, c.ended.ExitCode) {
		return true
	}
	policy := p.pod.Spec.RestartPolicy
	if c.spec.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.spec.RestartPolicy)
	}
	switch {
	case policy == corev1.RestartPolicyNever:
		return false
	case policy == corev1.RestartPolicyOnFailure, c.isInit && !runtime.IsSidecar(c.spec):
		return c.ended.ExitCode != 0
	default:
		return true
	}
}

// ruled reports that a container's restartPolicyRules restart it after an exit (KEP-5307). The first rule that matches
// decides, and restarting is all that one can do here.
func ruled(c *corev1.Container, code int32) bool {
	return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
		if r.Action != corev1.ContainerRestartRuleActionRestart || r.ExitCodes == nil {
			return false
		}
		in := slices.Contains(r.ExitCodes.Values, code)
		return in == (r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn)
	})
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
