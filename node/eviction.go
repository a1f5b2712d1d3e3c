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
	// evictionEvery is how often a node looks at what it has left, as the kubelet does.
	evictionEvery = 10 * time.Second
	// evictionWait is for how long nobody else is evicted while a pod ends that was.
	evictionWait = 30 * time.Second
	// leastEvictionGrace is what a pod has for its end that has to go at once.
	leastEvictionGrace = time.Second
	// systemCriticalPriority is the least priority of pods that a node cannot do without.
	systemCriticalPriority = 2_000_000_000
)

// podUse is what a pod takes of a resource, in all and by its containers.
type podUse struct {
	pod        *corev1.Pod
	taken      int64
	containers map[string]int64
}

// critical reports that a pod is never evicted: a static one, or one without which the node is none.
func (a *agent) critical(pod *corev1.Pod) bool {
	return priorityOf(pod) >= systemCriticalPriority || a.isStatic(pod)
}

func priorityOf(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// requested is what a pod asks for of a resource; nobody asks for processes or inodes.
func requested(pod *corev1.Pod, of corev1.ResourceName) int64 {
	q := podresource.PodRequests(pod, podresource.PodResourcesOptions{})[of]
	return amount.Of(q, 0)
}

// rank orders pods for eviction: pods above their requests first, then by lower priority, then by how far they
// are above their requests. For processes, which cannot be requested, only priority and number count.
func rank(uses []podUse, of corev1.ResourceName) {
	over := func(u podUse) int64 { return u.taken - requested(u.pod, of) }
	slices.SortStableFunc(uses, func(a, b podUse) int {
		x, y := over(a), over(b)
		exceeds := 0
		if of != resourcePIDs {
			exceeds = order(x <= 0, y <= 0)
		}
		return cmp.Or(exceeds, cmp.Compare(priorityOf(a.pod), priorityOf(b.pod)), cmp.Compare(y, x))
	})
}

// evictionMessage is why a pod is evicted, in the kubelet's words.
func evictionMessage(s *shortfall, use podUse) string {
	of := signals[s.signal]
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %s. ", of)
	fmt.Fprintf(&b, "Threshold quantity: %s, available: %s. ", display(s.least.of(s.Capacity), of),
		displayFree(s.Available, of))
	for _, c := range runtime.Containers(use.pod) {
		q := c.Resources.Requests[of]
		if taken := use.containers[c.Name]; taken > amount.Of(q, 0) {
			fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %s. ", c.Name,
				displayFree(taken, of), q.String(), of)
		}
	}
	return b.String()
}

func display(n int64, of corev1.ResourceName) string {
	if of == resourcePIDs || of == resourceInodes {
		return fmt.Sprint(n)
	}
	return resource.NewQuantity(n, resource.BinarySI).String()
}

// displayFree is a measured amount: of bytes whole kibibytes, as people read them.
func displayFree(n int64, of corev1.ResourceName) string {
	if of == corev1.ResourceMemory || of == corev1.ResourceEphemeralStorage {
		return fmt.Sprintf("%dKi", n/1024)
	}
	return fmt.Sprint(n)
}

// watchPressure looks at what a node has left, and ends one pod where that is too little.
func (a *agent) watchPressure(ctx context.Context, n *hostedNode) {
	if b := n.acts(); b.Stopped || b.Paused {
		return // as is known when it goes on
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

// evictOne ends the first pod in rank that may be ended.
func (a *agent) evictOne(ctx context.Context, n *hostedNode, s *shortfall, now time.Time) (runtime.PodKey, bool) {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	of := signals[s.signal]
	a.NodeEvent(n.name, corev1.EventTypeWarning, "EvictionThresholdMet", fmt.Sprintf("Attempting to reclaim %s", of))
	var uses []podUse
	for _, pod := range a.podsOf(n) {
		if pod.Status.StartTime != nil && !phaseEnded(pod.Status.Phase) {
			uses = append(uses, a.podUse(ctx, pod, of, now))
		}
	}
	rank(uses, of)
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

// terminate ends a pod for a reason of the node's, and reports whether it was not ending anyway. The pod's worker then
// stops its containers.
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

// ending reports that what the node has left does not tell yet how it is without the pod that was evicted last.
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
