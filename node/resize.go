package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Resizing a pod in place (KEP-1287) takes three steps. What the spec asks for is compared with what the node
// has; if it fits it is allocated, and the containers are brought to it, with a restart where their
// resizePolicy wants one. Until it fits, the pod has the condition PodResizePending and keeps what it has;
// until all containers are there, PodResizeInProgress.

// resizeRetry is when to try again what a runtime has refused.
const resizeRetry = 10 * time.Second

// resizing is how far a pod's resize has come.
type resizing struct {
	generation int64 // of the pod as it was allocated last
	podLevel   *corev1.ResourceRequirements
	// pending and message are why what the spec asks for is not allocated: Deferred or Infeasible; "" where it is.
	pending, message string
	begun            bool   // what was allocated last was a resize, and not all containers are there
	failed           string // why a container does not get what it is allocated
	retryAt          time.Time
}

// resizable are a pod's containers whose resources can change, with what the spec asks for now.
func (p *podState) resizable(each func(c *containerRun, wanted *corev1.Container)) {
	for i, c := range p.init {
		if runtime.IsSidecar(c.spec) && i < len(p.pod.Spec.InitContainers) {
			each(c, &p.pod.Spec.InitContainers[i])
		}
	}
	for i, c := range p.app {
		if i < len(p.pod.Spec.Containers) {
			each(c, &p.pod.Spec.Containers[i])
		}
	}
}

// wantsResize reports that the spec asks for other amounts than are allocated.
func (p *podState) wantsResize() bool {
	wants := !sameAmounts(p.resize.podLevel, p.pod.Spec.Resources)
	p.resizable(func(c *containerRun, wanted *corev1.Container) {
		wants = wants || !sameAmounts(&c.spec.Resources, &wanted.Resources)
	})
	return wants
}

// resizedResources are those that can change.
var resizedResources = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

func sameAmounts(a, b *corev1.ResourceRequirements) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil {
		return false
	}
	for _, name := range resizedResources {
		if differs(name, a.Requests, b.Requests) || differs(name, a.Limits, b.Limits) {
			return false
		}
	}
	return true
}

func differs(name corev1.ResourceName, a, b corev1.ResourceList) bool {
	x, inA := a[name]
	y, inB := b[name]
	return inA != inB || x.Cmp(y) != 0
}

// allocate gives the pod what it is allocated from now on: what its spec asks for.
func (p *podState) allocate() {
	p.resizable(func(c *containerRun, wanted *corev1.Container) {
		if sameAmounts(&c.spec.Resources, &wanted.Resources) {
			return
		}
		spec := *c.spec // others hold the old one
		spec.Resources, spec.ResizePolicy = wanted.Resources, wanted.ResizePolicy
		c.spec = &spec
	})
	p.resize = resizing{generation: p.pod.Generation, podLevel: p.pod.Spec.Resources, begun: true}
	p.stale.Store(true) // the downward API shows resources
	p.event(corev1.EventTypeNormal, "ResizeStarted", "Pod resize started: %s", p.resizeSummary(""))
}

// resizePod allocates what the pod's spec asks for, if the node has it.
func (a *agent) resizePod(n *hostedNode, p *podState) {
	if p.stopping || p.ended() || !p.wantsResize() {
		p.resize.pending, p.resize.message = "", ""
		n.account.settle(p.pod.UID)
		return
	}
	wanted := wantedBy(p.pod)
	reason, s := corev1.PodReasonInfeasible, beyond(wanted.requests, a.allocatable)
	message := ""
	if s != nil {
		n.account.settle(p.pod.UID)
		message = fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", s.resource,
			s.requested, s.capacity)
	} else if s = n.account.replace(runtime.KeyOf(p.pod), wanted, a.allocatable); s != nil {
		reason = corev1.PodReasonDeferred
		message = fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			s.resource, s.requested, s.used, s.capacity)
	}
	if s == nil {
		p.allocate()
		a.retryResizes(n) // it may have become smaller
		return
	}
	if p.resize.pending != reason {
		p.event(corev1.EventTypeWarning, "Resize"+reason, "Pod resize %s: %s", reason, p.resizeSummary(message))
	}
	p.resize.pending, p.resize.message = reason, message
}

// beyond is the first resource that can be resized of which a node never has as much.
func beyond(wanted map[corev1.ResourceName]int64, capacity corev1.ResourceList) *shortage {
	only := map[corev1.ResourceName]int64{}
	for _, name := range resizedResources {
		only[name] = wanted[name]
	}
	return lacking(only, nil, capacity)
}

// releaseRoom takes a pod off a node's account, and lets those try again that have waited for room to grow.
func (a *agent) releaseRoom(n *hostedNode, pod types.UID) {
	if n.account.release(pod) {
		a.retryResizes(n)
	}
}

func (a *agent) retryResizes(n *hostedNode) {
	for _, key := range n.account.waiting() {
		a.podQueue.Add(key)
	}
}

// replace notes that a pod asks for something else, if there is room; otherwise that it waits for it.
func (a *account) replace(key runtime.PodKey, w *wanted, capacity corev1.ResourceList) *shortage {
	a.mu.Lock()
	defer a.mu.Unlock()
	others := make(map[corev1.ResourceName]int64, len(a.total))
	for name, n := range a.total {
		others[name] = n
	}
	if old := a.byPod[key.UID]; old != nil {
		for name, n := range old.requests {
			others[name] -= n
		}
	}
	if s := lacking(w.requests, others, capacity); s != nil {
		if a.deferred == nil {
			a.deferred = map[types.UID]runtime.PodKey{}
		}
		a.deferred[key.UID] = key
		return s
	}
	delete(a.deferred, key.UID)
	a.remove(key.UID)
	a.add(key.UID, w)
	return nil
}

// settle notes that a pod does not wait for room.
func (a *account) settle(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.deferred, uid)
}

// waiting are the pods whose resize waits for room.
func (a *account) waiting() []runtime.PodKey {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]runtime.PodKey, 0, len(a.deferred))
	for _, key := range a.deferred {
		all = append(all, key)
	}
	return all
}

// actuate brings running containers to what they are allocated.
func (p *podState) actuate(now time.Time, w *wake) {
	if !p.resize.begun {
		return
	}
	if now.Before(p.resize.retryAt) {
		w.at(p.resize.retryAt)
		return
	}
	failed := ""
	done := true
	p.resizable(func(c *containerRun, _ *corev1.Container) {
		if c.running == nil || sameAmounts(c.actual, &c.spec.Resources) {
			done = done && !c.restart
			return
		}
		if c.restartsToResize() {
			done = false
			if !c.restart {
				p.event(corev1.EventTypeNormal, "Killing", "Container %s resize requires restart", c.spec.Name)
			}
			c.restart = true
			c.running.Stop(now, runtime.GracePeriod(p.pod))
			c.observe(now, w)
			return
		}
		if err := c.running.Resize(context.Background(), c.spec); err != nil {
			failed, done = err.Error(), false
			return
		}
		c.actual = c.spec.Resources.DeepCopy()
	})
	if failed != "" {
		if failed != p.resize.failed {
			p.event(corev1.EventTypeWarning, "ResizeError", "Pod resize error: %s", p.resizeSummary(failed))
		}
		p.resize.retryAt = now.Add(resizeRetry)
		w.at(p.resize.retryAt)
	}
	p.resize.failed = failed
	if done {
		p.resize.begun = false
		p.event(corev1.EventTypeNormal, "ResizeCompleted", "Pod resize completed: %s", p.resizeSummary(""))
	}
}

// restartsToResize reports that a container's resizePolicy wants it to be restarted for what is to change.
func (c *containerRun) restartsToResize() bool {
	if c.actual == nil {
		return false
	}
	for _, policy := range c.spec.ResizePolicy {
		if policy.RestartPolicy == corev1.RestartContainer &&
			(differs(policy.ResourceName, c.actual.Requests, c.spec.Resources.Requests) ||
				differs(policy.ResourceName, c.actual.Limits, c.spec.Resources.Limits)) {
			return true
		}
	}
	return false
}

// resizeSummary is what the kubelet puts into the Events of a resize.
func (p *podState) resizeSummary(failed string) string {
	type part struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	}
	summary := struct {
		InitContainers []part `json:"initContainers,omitempty"`
		Containers     []part `json:"containers,omitempty"`
		Generation     int64  `json:"generation"`
		Error          string `json:"error,omitempty"`
	}{Generation: p.pod.Generation, Error: failed}
	p.resizable(func(c *containerRun, wanted *corev1.Container) {
		one := part{c.spec.Name, wanted.Resources}
		if c.isInit {
			summary.InitContainers = append(summary.InitContainers, one)
		} else {
			summary.Containers = append(summary.Containers, one)
		}
	})
	text, _ := json.Marshal(summary) // such a value can be marshalled
	return string(text)
}

// resizeConditions are the conditions of a pod that is being resized.
func (p *podState) resizeConditions() []corev1.PodCondition {
	var all []corev1.PodCondition
	if p.stopped() && (p.stopping || p.ended()) {
		return nil
	}
	if p.resize.pending != "" {
		all = append(all, corev1.PodCondition{
			Type: corev1.PodResizePending, Status: corev1.ConditionTrue, ObservedGeneration: p.pod.Generation,
			Reason: p.resize.pending, Message: p.resize.message,
		})
	}
	if p.resize.begun {
		c := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue,
			ObservedGeneration: p.resize.generation}
		if p.resize.failed != "" {
			c.Reason, c.Message = corev1.PodReasonError, p.resize.failed
		}
		all = append(all, c)
	}
	return all
}

func isResizeCondition(t corev1.PodConditionType) bool {
	return t == corev1.PodResizePending || t == corev1.PodResizeInProgress
}

// allocatedPod is a pod with what it is allocated, as its status tells, which is less than its spec asks for
// while a resize is pending. A pod whose status does not tell is itself.
func allocatedPod(pod *corev1.Pod) *corev1.Pod {
	if findCondition(pod.Status.Conditions, corev1.PodResizePending) == nil {
		return pod
	}
	pod = pod.DeepCopy()
	restore := func(containers []corev1.Container, statuses []corev1.ContainerStatus) {
		for i := range containers {
			for j := range statuses {
				if s := &statuses[j]; s.Name == containers[i].Name && s.Resources != nil {
					restoreAmounts(&containers[i].Resources, s)
				}
			}
		}
	}
	restore(pod.Spec.InitContainers, pod.Status.InitContainerStatuses)
	restore(pod.Spec.Containers, pod.Status.ContainerStatuses)
	return pod
}

func restoreAmounts(r *corev1.ResourceRequirements, s *corev1.ContainerStatus) {
	set := func(list *corev1.ResourceList, name corev1.ResourceName, from corev1.ResourceList) {
		q, ok := from[name]
		switch {
		case !ok:
			delete(*list, name)
		case *list == nil:
			*list = corev1.ResourceList{name: q}
		default:
			(*list)[name] = q
		}
	}
	for _, name := range resizedResources {
		set(&r.Requests, name, s.AllocatedResources)
		set(&r.Limits, name, s.Resources.Limits)
	}
}
