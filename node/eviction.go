package node

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

const (
	// evictionEvery is the interval of checks of a node's free resources, as in the kubelet.
	evictionEvery = 10 * time.Second
	// evictionWait limits how long a node waits for an evicted pod to end, before it evicts another one.
	evictionWait = 30 * time.Second
	// leastEvictionGrace is the grace period of pods that have to end at once.
	leastEvictionGrace = time.Second
	// systemCriticalPriority is the lowest priority of pods that are critical to a node.
	systemCriticalPriority = 2_000_000_000
)

// podUse is a pod's usage of one resource, in total and by container.
type podUse struct {
	pod        *corev1.Pod
	taken      int64
	containers map[string]int64
}

// critical reports whether a pod is never evicted: a static pod, or one of critical priority.
func (a *agent) critical(pod *corev1.Pod) bool {
	return priorityOf(pod) >= systemCriticalPriority || a.isStatic(pod)
}

func priorityOf(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// requested returns a pod's request of a resource; 0 for processes and inodes, which cannot be requested.
func requested(pod *corev1.Pod, name corev1.ResourceName) int64 {
	q := podresource.PodRequests(pod, podresource.PodResourcesOptions{})[name]
	return amount.Of(q, 0)
}

// rank orders pods for eviction: pods above their requests first, then by lower priority, then by how far they
// are above their requests. For processes, which cannot be requested, only priority and number count.
func rank(uses []podUse, name corev1.ResourceName) {
	over := func(u podUse) int64 { return u.taken - requested(u.pod, name) }
	slices.SortStableFunc(uses, func(a, b podUse) int {
		x, y := over(a), over(b)
		exceeds := 0
		if name != resourcePIDs {
			exceeds = order(x <= 0, y <= 0)
		}
		return cmp.Or(exceeds, cmp.Compare(priorityOf(a.pod), priorityOf(b.pod)), cmp.Compare(y, x))
	})
}

// evictionMessage returns the reason why a pod is evicted, in the kubelet's words.
func evictionMessage(s *shortfall, use podUse) string {
	name := signals[s.signal]
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %s. ", name)
	fmt.Fprintf(&b, "Threshold quantity: %s, available: %s. ", display(s.least.value(s.Capacity), name),
		displayFree(s.Available, name))
	for _, c := range runtime.Containers(use.pod) {
		q := c.Resources.Requests[name]
		if taken := use.containers[c.Name]; taken > amount.Of(q, 0) {
			fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %s. ", c.Name,
				displayFree(taken, name), q.String(), name)
		}
	}
	return b.String()
}

func display(n int64, name corev1.ResourceName) string {
	if name == resourcePIDs || name == resourceInodes {
		return fmt.Sprint(n)
	}
	return resource.NewQuantity(n, resource.BinarySI).String()
}

// displayFree formats a measured amount: bytes as whole kibibytes, for readability.
func displayFree(n int64, name corev1.ResourceName) string {
	if name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
		return fmt.Sprintf("%dKi", n/1024)
	}
	return fmt.Sprint(n)
}

// watchPressure checks a node's free resources, and evicts one pod if they are too low.
func (a *agent) watchPressure(ctx context.Context, n *hostedNode) {
	if b := n.acts(); b.Stopped || b.Paused {
		return // nodeSeen queues the task again when the node continues
	}
	next := evictionEvery
	defer func() { a.nodeQueue.AddAfter(nodeTask{n.name, watchPressure}, next) }()
	now := a.Clock.Now()
	due, changed := n.pressure.judge(a.thresholds, a.observe(n), a.Eviction.PressureTransitionPeriod, now)
	if changed {
		a.nodeQueue.Add(nodeTask{n.name, syncNode})
	}
	if len(due) == 0 {
		return
	}
	if a.ending(n, now) {
		next = time.Second
		return
	}
	if key, ok := a.evictOne(ctx, n, &due[0], now); ok {
		n.pressure.evicted, n.pressure.until = key, now.Add(evictionWait)
		next = time.Second
	}
}

// evictOne evicts the first pod in rank that may be evicted.
func (a *agent) evictOne(ctx context.Context, n *hostedNode, s *shortfall, now time.Time) (runtime.PodKey, bool) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	name := signals[s.signal]
	a.NodeEvent(n.name, corev1.EventTypeWarning, "EvictionThresholdMet", fmt.Sprintf("Attempting to reclaim %s", name))
	var uses []podUse
	for _, pod := range a.podsOf(n) {
		if pod.Status.StartTime != nil && !phaseEnded(pod.Status.Phase) {
			uses = append(uses, a.podUse(ctx, pod, name, now))
		}
	}
	rank(uses, name)
	for _, u := range uses {
		if a.critical(u.pod) {
			continue
		}
		grace := leastEvictionGrace
		if !s.hard {
			grace = max(grace, min(a.Eviction.MaxPodGracePeriod, runtime.GracePeriod(u.pod)))
		}
		message := evictionMessage(s, u)
		if a.terminate(u.pod, "Evicted", message, grace, now) {
			a.Event(u.pod, corev1.EventTypeWarning, "Evicted", message)
			return runtime.KeyOf(u.pod), true
		}
	}
	return runtime.PodKey{}, false
}

// terminate ends a pod for a reason of the node's, and reports whether the pod was not ending anyway. The pod's worker
// stops its containers later.
func (a *agent) terminate(pod *corev1.Pod, reason, message string, grace time.Duration, now time.Time) bool {
	p := a.hostedPod(pod.UID)
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Stopping() || p.state.Ended() {
		return false
	}
	p.state.Disrupt(reason, message, now, grace)
	p.halt()
	a.podQueue.Add(runtime.KeyOf(pod))
	return true
}

// ending reports whether the pod that was evicted last is still ending, so that the node's free resources do not show
// the effect of its eviction yet.
func (a *agent) ending(n *hostedNode, now time.Time) bool {
	key := n.pressure.evicted
	pod, err := n.link.pods.Pods(key.Namespace).Get(key.Name)
	if err != nil || pod.UID != key.UID || phaseEnded(pod.Status.Phase) {
		return false
	}
	p := a.hostedPod(key.UID)
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Stopped() || now.Before(n.pressure.until)
}
