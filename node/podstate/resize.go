package podstate

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Resizing a pod in place (KEP-1287) takes three steps. The agent compares the requests of the spec with the room on
// the node; if there is room, they are allocated, and the containers are brought to them, with a restart where their
// resizePolicy wants one. While there is no room, the pod has the condition PodResizePending and keeps its resources;
// until all containers have their new resources, PodResizeInProgress.

// ResizeRetry is how long to wait before trying a Resize again that failed.
const ResizeRetry = 10 * time.Second

// resizing is how far a pod's resize has come.
type resizing struct {
	generation int64 // of the pod when resources were last allocated
	podLevel   *corev1.ResourceRequirements
	// pending and message are why the requests of the spec are not allocated: Deferred or Infeasible; "" where they
	// are.
	pending, message string
	begun            bool   // the latest allocation was a resize, and not all containers have it yet
	failed           string // why a container does not get its allocation
	retryAt          time.Time
}

// resizable calls each for the pod's containers that can be resized, with their spec as it is now.
func (p *Pod) resizable(each func(c *container, spec *corev1.Container)) {
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

// WantsResize reports whether the spec asks for other amounts than are allocated, in a pod that goes on.
func (p *Pod) WantsResize() bool {
	if p.stopping || p.Ended() {
		return false
	}
	wants := !sameAmounts(p.resize.podLevel, p.pod.Spec.Resources)
	p.resizable(func(c *container, spec *corev1.Container) {
		wants = wants || !sameAmounts(&c.spec.Resources, &spec.Resources)
	})
	return wants
}

// ResizedResources lists the resources that a resize can change.
var ResizedResources = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

func sameAmounts(a, b *corev1.ResourceRequirements) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil {
		return false
	}
	for _, name := range ResizedResources {
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

// Allocate gives the pod the amounts that its spec asks for.
func (p *Pod) Allocate() {
	p.resizable(func(c *container, changed *corev1.Container) {
		if sameAmounts(&c.spec.Resources, &changed.Resources) {
			return
		}
		spec := *c.spec // the agent and the runtime may still use the old one
		spec.Resources, spec.ResizePolicy = changed.Resources, changed.ResizePolicy
		c.spec = &spec
	})
	p.resize = resizing{generation: p.pod.Generation, podLevel: p.pod.Spec.Resources, begun: true}
	p.event(corev1.EventTypeNormal, "ResizeStarted", "Pod resize started: %s", p.resizeSummary(""))
}

// PendResize notes that the node does not have the amounts that the spec asks for, and why: reason is
// PodReasonInfeasible or PodReasonDeferred.
func (p *Pod) PendResize(reason, message string) {
	if p.resize.pending != reason {
		p.event(corev1.EventTypeWarning, "Resize"+reason, "Pod resize %s: %s", reason, p.resizeSummary(message))
	}
	p.resize.pending, p.resize.message = reason, message
}

// SettleResize notes that no resize is pending.
func (p *Pod) SettleResize() { p.resize.pending, p.resize.message = "", "" }

// actuate brings running containers to their allocation.
func (p *Pod) actuate(now time.Time, w *wake) {
	if !p.resize.begun {
		return
	}
	if now.Before(p.resize.retryAt) {
		w.at(p.resize.retryAt)
		return
	}
	failed := ""
	done, waits := true, false
	p.resizable(func(c *container, _ *corev1.Container) {
		switch {
		case c.phase != running || sameAmounts(c.actual, &c.spec.Resources):
			done = done && !c.restart
			return
		case c.restartsToResize():
			if !c.restart {
				p.event(corev1.EventTypeNormal, "Killing", "Container %s resize requires restart", c.spec.Name)
			}
			c.restart = true
			p.stop(c, now.Add(runtime.GracePeriod(p.pod)), now)
		case c.resizing:
			waits = true
		case c.resizeError != "":
			failed, c.resizeError = c.resizeError, ""
		default:
			c.resizing, waits = true, true
			p.order(Resize{c.spec})
		}
		done = false
	})
	if waits && failed == "" {
		return // the results decide
	}
	if failed != "" {
		if failed != p.resize.failed {
			p.event(corev1.EventTypeWarning, "ResizeError", "Pod resize error: %s", p.resizeSummary(failed))
		}
		p.resize.retryAt = now.Add(ResizeRetry)
		w.at(p.resize.retryAt)
	}
	p.resize.failed = failed
	if done {
		p.resize.begun = false
		p.event(corev1.EventTypeNormal, "ResizeCompleted", "Pod resize completed: %s", p.resizeSummary(""))
	}
}

// Resized notes the result of a Resize to the resources of spec.
func (p *Pod) Resized(spec *corev1.Container, err error) {
	c := p.find(spec.Name)
	if c == nil || c.phase != running || !c.resizing {
		return
	}
	if c.resizing = false; err != nil {
		c.resizeError = err.Error()
		return
	}
	c.actual = spec.Resources.DeepCopy()
}

// restartsToResize reports whether a container's resizePolicy wants it to be restarted for the change.
func (c *container) restartsToResize() bool {
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

// resizeSummary returns the text that the kubelet puts into the Events of a resize.
func (p *Pod) resizeSummary(failed string) string {
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
	p.resizable(func(c *container, spec *corev1.Container) {
		one := part{c.spec.Name, spec.Resources}
		if c.isInit {
			summary.InitContainers = append(summary.InitContainers, one)
		} else {
			summary.Containers = append(summary.Containers, one)
		}
	})
	text, _ := json.Marshal(summary) // such a value can be marshalled
	return string(text)
}

// resizeConditions returns the conditions of a pod that is being resized.
func (p *Pod) resizeConditions() []corev1.PodCondition {
	var all []corev1.PodCondition
	if p.Stopped() && (p.stopping || p.Ended()) {
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

// IsResizeCondition reports whether a condition is about a resize.
func IsResizeCondition(t corev1.PodConditionType) bool {
	return t == corev1.PodResizePending || t == corev1.PodResizeInProgress
}

// Allocated returns a pod with the resources that it is allocated by its status, which are less than its spec asks
// for while a resize is pending. A pod whose status does not have them is returned as it is.
func Allocated(pod *corev1.Pod) *corev1.Pod {
	if Condition(pod.Status.Conditions, corev1.PodResizePending) == nil {
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
	for _, name := range ResizedResources {
		set(&r.Requests, name, s.AllocatedResources)
		set(&r.Limits, name, s.Resources.Limits)
	}
}
