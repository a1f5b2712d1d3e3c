// Package podstate decides how a pod lives on its node: which container is pulled, started, restarted, resized or
// stopped, when, and which status follows. It is a state machine of values, without I/O, clock or goroutines, so that
// tests can hold it to a model.
//
//	inputs                                      outputs
//	Update    the pod as the API server has it  []Action  Pull, CancelPull, Start, Stop, Resize
//	Observe   the state of a running container  []Event   to record
//	Pulled, Started, …  the results of actions  Status    the pod's status
//	Stop, End, Halt     the end of the pod      the time of the next step, and the Deadline
//
// The agent carries the actions out, with contexts and without holding a lock, and returns their results. A result
// may come much later, or when the pod is ending: the machine remembers which results it still waits for, and ignores
// all others.
//
//	pod.go        the life of the pod: init containers, containers, its end
//	container.go  the life of a container: pulling, starting, running, back-off
//	image.go      images: failed pulls, and changes of a container's image
//	resize.go     resizing a pod in place
//	action.go     actions and Events
//	status.go     the status of pod and containers
//	condition.go  the conditions of the pod
package podstate

import (
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Pod is the state machine of one pod. Its methods are not safe for concurrent use.
//
//	waiting for the runtime → init containers, one after the other → containers → ended
//
// and, once Stop was called, from anywhere → ended.
type Pod struct {
	pod       *corev1.Pod   // as last seen; never changed
	delay     time.Duration // between the pod's admission and its first container
	startTime time.Time     // of the pod's admission
	addresses []string      // the pod's IPs, the primary one first; empty until it has one
	hostIP    string
	init      []*container
	app       []*container
	ephemeral []*container

	resize resizing

	rejected    bool // the pod may not run here, and never had containers
	initialized bool
	halted      bool // the pod will end soon: no container is pulled or started any more
	stopping    bool
	stopBy      time.Time // when containers that still run are killed
	failed      bool      // an init container failed for good
	reason      string    // why the agent ended the pod, if it did
	message     string
	disruption  *corev1.PodCondition // reports that the node ended the pod, once it has ended

	actions []Action // of the present step
	events  []Event  // to record
}

// New returns the state of a pod that was admitted now, to a node with the address hostIP. Its first container starts
// after delay.
func New(pod *corev1.Pod, hostIP string, now time.Time, delay time.Duration) *Pod {
	p := &Pod{pod: pod, hostIP: hostIP, startTime: now, delay: delay}
	p.resize = resizing{generation: pod.Generation, podLevel: pod.Spec.Resources}
	pod = Allocated(pod)
	for i := range pod.Spec.InitContainers {
		p.init = append(p.init, &container{spec: &pod.Spec.InitContainers[i], isInit: true})
	}
	for i := range pod.Spec.Containers {
		p.app = append(p.app, &container{spec: &pod.Spec.Containers[i]})
	}
	p.addEphemeral()
	return p
}

// Resume continues with a pod that an earlier agent has started, from its status. The agent then adopts the
// containers that Adoptions returns.
func (p *Pod) Resume() {
	status := &p.pod.Status
	p.startTime = status.StartTime.Time
	p.addresses = addressesOf(status)
	lists := [][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses,
		status.EphemeralContainerStatuses}
	for c := range p.all() {
		for _, statuses := range lists {
			for i := range statuses {
				if statuses[i].Name == c.spec.Name {
					c.resume(p, &statuses[i])
				}
			}
		}
	}
}

// addressesOf returns the IPs in a status, the primary one first.
func addressesOf(s *corev1.PodStatus) []string {
	var addresses []string
	for _, ip := range s.PodIPs {
		addresses = append(addresses, ip.IP)
	}
	if len(addresses) == 0 && s.PodIP != "" {
		addresses = []string{s.PodIP}
	}
	return addresses
}

// addEphemeral adds ephemeral containers that are new in the pod.
func (p *Pod) addEphemeral() {
	for i := len(p.ephemeral); i < len(p.pod.Spec.EphemeralContainers); i++ {
		c := corev1.Container(p.pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		p.ephemeral = append(p.ephemeral, &container{spec: &c, once: true})
	}
}

// all yields all containers of the pod.
func (p *Pod) all() iter.Seq[*container] {
	return func(yield func(*container) bool) {
		for _, list := range [...][]*container{p.init, p.app, p.ephemeral} {
			for _, c := range list {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// find returns the container of a name, or nil. Names are unique within a pod.
func (p *Pod) find(name string) *container {
	for c := range p.all() {
		if c.spec.Name == name {
			return c
		}
	}
	return nil
}

// Pod returns the pod as last seen, which must not be changed.
func (p *Pod) Pod() *corev1.Pod { return p.pod }

// Update notes the pod as it is now.
func (p *Pod) Update(pod *corev1.Pod) { p.pod = pod }

// Addresses returns the pod's IPs, the primary one first.
func (p *Pod) Addresses() []string { return p.addresses }

// SetAddresses replaces the pod's IPs.
func (p *Pod) SetAddresses(addresses []string) { p.addresses = addresses }

// Step returns the actions that are due, and when the next step will be; zero where only another input can lead to
// one. The agent carries all actions out, in their order, and steps again. It also steps at the Deadline, which next
// does not include.
func (p *Pod) Step(now time.Time) (actions []Action, next time.Time) {
	p.actions = nil
	p.addEphemeral()
	w := p.changes()
	p.checkDeadline(now)
	if !p.stopping && !p.halted {
		p.replaceImages(now)
		p.actuate(now, &w)
	}
	startAt := p.startTime.Add(p.delay)
	switch {
	case p.stopping:
		p.stopNext(now)
	case p.halted, p.Ended():
	case now.Before(startAt):
		w.at(startAt)
	default:
		p.runAll(now, &w)
	}
	if p.Ended() && !p.stopping { // sidecars do not outlive the other containers
		p.Stop(now, runtime.GracePeriod(p.pod))
		p.stopNext(now)
		w = p.changes()
	}
	return p.actions, w.next
}

// changes returns when a running container will change by itself.
func (p *Pod) changes() wake {
	w := wake{}
	for c := range p.all() {
		if c.phase == running {
			w.at(c.next)
		}
	}
	return w
}

// wake is the earliest of several moments.
type wake struct{ next time.Time }

func (w *wake) at(t time.Time) {
	if !t.IsZero() && (w.next.IsZero() || t.Before(w.next)) {
		w.next = t
	}
}

func (p *Pod) runAll(now time.Time, w *wake) {
	initialized := p.runInit(now, w)
	if p.failed {
		return
	}
	for _, c := range p.ephemeral { // they do not wait for init containers
		p.advance(c, now, w)
	}
	if initialized {
		for _, c := range p.app {
			p.advance(c, now, w)
		}
	}
}

// runInit runs init containers in their order and reports whether the pod is initialized. From then on, it only looks
// after sidecars.
func (p *Pod) runInit(now time.Time, w *wake) bool {
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

// Deadline returns when the pod has been active for activeDeadlineSeconds; zero if it has no limit or is ending. The
// next step after that time ends the pod. It follows from startTime in the pod's status and is a moment on the wall
// clock: it has no reading of the monotonic clock, and a wall clock that is set forwards reaches it sooner.
func (p *Pod) Deadline() time.Time {
	limit := p.pod.Spec.ActiveDeadlineSeconds
	if limit == nil || p.stopping || p.Ended() {
		return time.Time{}
	}
	return p.startTime.Add(amount.Seconds(*limit)).Round(0)
}

// checkDeadline ends a pod that has been active for too long.
func (p *Pod) checkDeadline(now time.Time) {
	deadline := p.Deadline()
	if deadline.IsZero() || now.Before(deadline) {
		return
	}
	const message = "Pod was active on the node longer than the specified deadline"
	p.event(corev1.EventTypeNormal, "DeadlineExceeded", message)
	p.End("DeadlineExceeded", message, now, runtime.GracePeriod(p.pod))
}

// Halt ends pulls and starts ahead of Stop: the agent calls it as soon as it learns that the pod will end. Results
// that come afterwards are not failures.
func (p *Pod) Halt() { p.halted = true }

// Continue takes Halt back: the pod goes on after all. The agent has cancelled the pulls that were under way.
func (p *Pod) Continue() {
	p.halted = false
	for c := range p.all() {
		if c.phase == pulling {
			c.phase = idle
		}
	}
}

// Stop begins the pod's end: from now on no container is started, and all are killed after grace. A later call may
// shorten the time.
func (p *Pod) Stop(now time.Time, grace time.Duration) {
	if deadline := now.Add(grace); !p.stopping || deadline.Before(p.stopBy) {
		p.stopBy = deadline
	}
	p.stopping = true
}

// End stops the pod for a reason of the agent's, which makes it fail.
func (p *Pod) End(reason, message string, now time.Time, grace time.Duration) {
	p.reason, p.message = reason, message
	p.Stop(now, grace)
}

// Disrupt ends the pod for a reason that is the node's. Its status then has the condition DisruptionTarget.
func (p *Pod) Disrupt(reason, message string, now time.Time, grace time.Duration) {
	p.disruption = &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
		Message: message,
	}
	p.End(reason, message, now, grace)
}

// Reject ends a pod that may not run on this node.
func (p *Pod) Reject(reason, message string, now time.Time) {
	p.rejected = true
	p.event(corev1.EventTypeWarning, reason, "%s", message)
	p.End(reason, "Pod was rejected: "+message, now, 0)
}

// stopNext ends pulls and stops the containers; when they have ended it stops the sidecars, the last to be started
// first. All share one grace period.
func (p *Pod) stopNext(now time.Time) {
	busy := false
	for c := range p.all() {
		p.abandonPull(c)
		if c.live() && !(c.isInit && runtime.IsSidecar(c.spec)) {
			p.stop(c, p.stopBy, now)
			busy = true
		}
	}
	for i := len(p.init) - 1; i >= 0 && !busy; i-- {
		if c := p.init[i]; c.live() {
			p.stop(c, p.stopBy, now)
			busy = true
		}
	}
}

// Stopping reports whether the pod's end has begun.
func (p *Pod) Stopping() bool { return p.stopping }

// Ended reports whether the pod's containers, other than sidecars, have ended and will not run again.
func (p *Pod) Ended() bool {
	if p.failed {
		return true
	}
	for _, c := range p.app {
		if c.live() || !p.stopping && (c.ended == nil || p.restarts(c)) {
			return false
		}
	}
	return true
}

// Stopped reports whether no container runs.
func (p *Pod) Stopped() bool {
	for c := range p.all() {
		if c.live() {
			return false
		}
	}
	return true
}
