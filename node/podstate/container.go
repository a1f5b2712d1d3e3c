package podstate

import (
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

const (
	// The kubelet restarts a container at once, then after 10 s, 20 s, … 5 min. A run of 10 min resets the delay.
	restartBackoff    = 10 * time.Second
	maxRestartBackoff = 5 * time.Minute
	goodRun           = 2 * maxRestartBackoff
)

// phase is how far a run of a container has come.
type phase int

const (
	idle     phase = iota // no run is under way: it has not begun, has ended, or waits for its next try
	pulling               // a Pull is under way
	pulled                // the image is there, and Start comes next
	starting              // a Start is under way
	running
)

// container is a container of a pod through all its runs.
type container struct {
	spec   *corev1.Container
	isInit bool
	once   bool // an ephemeral container, which never runs again

	phase    phase
	attempt  int       // of the latest Pull: the results of earlier ones are ignored
	image    string    // the ID of the image that was pulled for the coming run
	stopBy   time.Time // when the present run is killed; zero while it has not been asked to end
	next     time.Time // when the state of the present run will change by itself; zero where that is not known
	ready    bool
	starting bool                    // the startup probe or the postStart hook has not succeeded yet
	adopt    *corev1.ContainerStatus // the run of an earlier agent that has yet to be adopted

	run     int32 // how many runs have begun before the present or latest one: the restart count
	id      string
	imageID string
	started time.Time
	actual  *corev1.ResourceRequirements     // the resources of the present or latest run; never changed
	ended   *corev1.ContainerStateTerminated // how the latest run ended; nil while one is on
	last    *corev1.ContainerStateTerminated // how the run before that ended

	restart     bool   // it is stopped to be started with other resources or another image
	resizing    bool   // a Resize is under way
	resizeError string // the error of the last Resize, until the next step has dealt with it

	waiting   *corev1.ContainerStateWaiting // why it could not be pulled or started
	retryAt   time.Time                     // no Pull before
	retries   int                           // in the present back-off
	backOffAt time.Time                     // when the reason of a failed pull becomes ImagePullBackOff; zero if never
	reported  bool                          // the present back-off has had its Event
}

// resume continues with a container from its status.
func (c *container) resume(p *Pod, s *corev1.ContainerStatus) {
	c.run, c.id, c.imageID = s.RestartCount, s.ContainerID, s.ImageID
	c.last = s.LastTerminationState.Terminated
	if c.actual = s.Resources; c.actual == nil {
		c.actual = &c.spec.Resources
	}
	p.resize.begun = p.resize.begun || !sameAmounts(c.actual, &c.spec.Resources)
	switch {
	case s.State.Running != nil:
		c.phase, c.adopt, c.started = running, s, s.State.Running.StartedAt.Time
		c.ready, c.starting = s.Ready, s.Started != nil && !*s.Started
		if s.Image != "" {
			c.setImage(s.Image) // the spec may have got another image while no agent was there
		}
	case s.State.Terminated != nil:
		c.ended = s.State.Terminated
	case c.last != nil: // it waits for its restart
		c.ended, c.last = c.last, nil
		c.retries = int(c.run)
		c.retryAt = c.ended.FinishedAt.Add(restartDelay(c.retries))
	}
}

// Adoption is a container that an earlier agent has started, with its status.
type Adoption struct {
	Container *corev1.Container
	Status    *corev1.ContainerStatus
}

// Adoptions returns the containers that the agent has yet to adopt, before the next step. It calls Adopted or Lost
// for each of them.
func (p *Pod) Adoptions() []Adoption {
	var all []Adoption
	for c := range p.all() {
		if c.adopt != nil {
			all = append(all, Adoption{c.spec, c.adopt})
		}
	}
	return all
}

// Adopted notes that the agent has taken over a container.
func (p *Pod) Adopted(name string) {
	if c := p.find(name); c != nil {
		c.adopt = nil
	}
}

// Lost notes that a container has not survived the earlier agent. That counts as a run that failed.
func (p *Pod) Lost(name string, err error) {
	c := p.find(name)
	if c == nil || c.adopt == nil {
		return
	}
	c.ended = &corev1.ContainerStateTerminated{
		ExitCode: 137, Reason: "ContainerStatusUnknown", Message: err.Error(), StartedAt: metav1.NewTime(c.started),
		ContainerID: c.id,
	}
	c.phase, c.adopt, c.ready, c.starting = idle, nil, false, false
}

// live reports whether the container runs or is being started.
func (c *container) live() bool { return c.phase == running || c.phase == starting }

// nextRun returns the number of the run that would start now.
func (c *container) nextRun() int32 {
	if c.ended != nil {
		return c.run + 1
	}
	return c.run
}

// advance brings a container towards running, if it should run, and reports whether the next one may start: an init
// container has to have succeeded, a sidecar has to have started.
func (p *Pod) advance(c *container, now time.Time, w *wake) bool {
	switch {
	case c.phase == running:
		return runtime.IsSidecar(c.spec) && !c.starting
	case c.phase == pulled:
		c.phase = starting
		p.order(Start{c.spec, c.nextRun()})
	case c.phase != idle:
	case c.ended != nil && !p.restarts(c):
		return c.ended.ExitCode == 0
	case now.Before(c.retryAt):
		p.reportBackOff(c, now, w)
		w.at(c.retryAt)
	default:
		c.phase = pulling
		c.attempt++
		p.order(Pull{c.spec, c.attempt})
	}
	return false
}

// reportBackOff records one Event for each back-off. After a failed pull it waits until backOffAt: until then the
// failure itself is the container's reason.
func (p *Pod) reportBackOff(c *container, now time.Time, w *wake) {
	switch {
	case c.reported:
	case now.Before(c.backOffAt):
		w.at(c.backOffAt)
	case !c.backOffAt.IsZero():
		c.reported = true
		p.backOffPull(c)
	case c.waiting == nil && c.ended != nil:
		c.reported = true
		p.event(corev1.EventTypeWarning, "BackOff", "Back-off restarting failed container %s in pod %s_%s(%s)",
			c.spec.Name, p.pod.Name, p.pod.Namespace, p.pod.UID)
	}
}

// Started notes that a run of a container has started, with its ID.
func (p *Pod) Started(name, id string, now time.Time) {
	c := p.find(name)
	if c == nil || c.phase != starting {
		return
	}
	if c.waiting != nil { // a broken image does not count towards the back-off of a crashing program
		c.waiting, c.retries = nil, 0
	}
	c.run = c.nextRun()
	if c.ended != nil {
		c.last, c.ended = c.ended, nil
	}
	c.phase, c.id, c.imageID, c.started = running, id, c.image, now
	c.actual, c.restart = &c.spec.Resources, false
	c.ready, c.starting = false, true // until it is observed
	c.stopBy, c.next, c.backOffAt, c.reported = time.Time{}, time.Time{}, time.Time{}, false
	c.resizing, c.resizeError = false, ""
}

// StartFailed notes that a container did not start. If its own command is at fault, that was a run.
func (p *Pod) StartFailed(name string, err error, now time.Time) {
	c := p.find(name)
	if c == nil || c.phase != starting {
		return
	}
	c.phase = idle
	if p.stopping || p.halted {
		return
	}
	p.event(corev1.EventTypeWarning, "Failed", "Error: %v", err)
	c.backOffAt, c.reported = time.Time{}, false
	var command runtime.StartError
	var config runtime.ConfigError
	switch {
	case errors.As(err, &command):
		run := c.nextRun()
		if c.ended != nil {
			c.last = c.ended
		}
		c.waiting, c.run = nil, run
		c.ended = &corev1.ContainerStateTerminated{
			ExitCode: 128, Reason: "StartError", Message: err.Error(), StartedAt: metav1.NewTime(time.Unix(0, 0)),
			FinishedAt: metav1.NewTime(now),
		}
		c.retryAt = now.Add(restartDelay(c.retries))
		c.retries++
		return
	case errors.As(err, &config):
		c.waiting = &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: err.Error()}
	default:
		c.waiting = &corev1.ContainerStateWaiting{Reason: "RunContainerError", Message: err.Error()}
	}
	c.retries++
	c.retryAt = now.Add(restartDelay(c.retries))
}

// Observe notes the state of a running container.
func (p *Pod) Observe(name string, s runtime.State) {
	c := p.find(name)
	if c == nil || c.phase != running {
		return
	}
	c.ready, c.starting, c.next = s.Ready, s.Starting, s.Next
	if s.Exit != nil {
		c.exited(s.Exit)
	}
}

func (c *container) exited(exit *runtime.Exit) {
	c.ended = &corev1.ContainerStateTerminated{
		ExitCode: exit.Code, Reason: "Completed", Message: exit.Message,
		StartedAt: metav1.NewTime(c.started), FinishedAt: metav1.NewTime(exit.At), ContainerID: c.id,
	}
	if exit.Code != 0 {
		c.ended.Reason = "Error"
	}
	if exit.Reason != "" {
		c.ended.Reason = exit.Reason
	}
	c.phase, c.ready, c.resizing, c.resizeError = idle, false, false, ""
	if exit.At.Sub(c.started) >= goodRun {
		c.retries = 0
	}
	if c.restart {
		return // it starts again at once, since it has not crashed
	}
	c.retryAt = exit.At.Add(restartDelay(c.retries))
	c.retries++
}

// stop asks a container to end before a deadline, unless it was asked to end by then already.
func (p *Pod) stop(c *container, deadline, now time.Time) {
	if c.phase != running || !c.stopBy.IsZero() && !deadline.Before(c.stopBy) {
		return
	}
	c.stopBy = deadline
	p.order(Stop{c.spec.Name, max(0, deadline.Sub(now))})
}

// restartDelay returns how long to wait before the next try after a number of retries.
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

// restarts reports whether a container that ended will run again.
func (p *Pod) restarts(c *container) bool {
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

// ruled reports whether a container's restartPolicyRules restart it after an exit (KEP-5307). The first rule that
// matches decides, and the only action that a rule can have here is to restart.
func ruled(c *corev1.Container, code int32) bool {
	return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
		if r.Action != corev1.ContainerRestartRuleActionRestart || r.ExitCodes == nil {
			return false
		}
		in := slices.Contains(r.ExitCodes.Values, code)
		return in == (r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn)
	})
}
