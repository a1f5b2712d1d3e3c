package replicaset

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// choose returns the n pods to delete first. related are all pods that count for the spread over nodes; they include
// pods.
func choose(pods, related []*corev1.Pod, n int, now time.Time) []*corev1.Pod {
	if n >= len(pods) {
		return pods
	}
	onNode := map[string]int{}
	for _, pod := range related {
		onNode[pod.Spec.NodeName]++
	}
	ranks := make([]rank, len(pods))
	for i, pod := range pods {
		ranks[i] = rankOf(pod, onNode[pod.Spec.NodeName], now)
	}
	slices.SortStableFunc(ranks, rank.compare)
	chosen := make([]*corev1.Pod, n)
	for i := range chosen {
		chosen[i] = ranks[i].pod
	}
	return chosen
}

// rank has the properties of a pod that determine how early it is deleted.
type rank struct {
	pod        *corev1.Pod
	assigned   bool
	phase      int
	ready      bool
	cost       int32
	doubled    int // related pods on the same node
	readySince age
	restarts   containerRestarts
	created    age
}

func rankOf(pod *corev1.Pod, onNode int, now time.Time) rank {
	r := rank{
		pod: pod, assigned: pod.Spec.NodeName != "", phase: phaseOrder(pod.Status.Phase),
		cost: deletionCost(pod), doubled: onNode, restarts: restartsOf(pod),
		created: ageOf(pod.CreationTimestamp.Time, now),
	}
	if c := controller.PodCondition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		r.ready, r.readySince = true, ageOf(c.LastTransitionTime.Time, now)
	}
	return r
}

// compare returns a negative number if r's pod is deleted before o's:
//
//  1. not assigned to a node before assigned,
//  2. pending before unknown before running,
//  3. not ready before ready,
//  4. low deletion cost before high,
//  5. on a node with many related pods before on a node with few,
//  6. ready for a short time before ready for long,
//  7. restarted often before restarted seldom,
//  8. young before old.
//
// Ages of the same order of magnitude count as equal. Then the uid decides, so that a scale-down does not always delete
// the newest pods, which may all be in one zone or on one node (KEP-2185).
func (r rank) compare(o rank) int {
	return cmp.Or(
		falseFirst(r.assigned, o.assigned),
		cmp.Compare(r.phase, o.phase),
		falseFirst(r.ready, o.ready),
		cmp.Compare(r.cost, o.cost),
		cmp.Compare(o.doubled, r.doubled),
		r.youngFirst(r.readySince, o, o.readySince),
		o.restarts.compare(r.restarts),
		r.youngFirst(r.created, o, o.created),
	)
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// age is a time in the past and the order of magnitude of the duration since then.
type age struct {
	start     time.Time
	magnitude int // of the nanoseconds, as a power of ten; -1 if none have passed
}

func ageOf(start, now time.Time) age {
	a := age{start: start, magnitude: -1}
	if d := now.Sub(start); d > 0 {
		a.magnitude = int(math.Log10(float64(d)))
	}
	return a
}

// youngFirst orders the shorter age first. An unknown age counts as the shortest.
func (r rank) youngFirst(a age, o rank, b age) int {
	switch {
	case a.start.Equal(b.start):
		return 0
	case a.start.IsZero():
		return -1
	case b.start.IsZero():
		return 1
	}
	return cmp.Or(cmp.Compare(a.magnitude, b.magnitude), cmp.Compare(r.pod.UID, o.pod.UID))
}

// phaseOrder orders pending pods before unknown ones, and these before all others.
func phaseOrder(p corev1.PodPhase) int {
	switch p {
	case corev1.PodPending:
		return 0
	case corev1.PodUnknown:
		return 1
	}
	return 2
}

// deletionCost returns the value of the annotation controller.kubernetes.io/pod-deletion-cost. A value that is not an
// int32 in canonical form, without plus sign or leading zeros, counts as 0.
func deletionCost(pod *corev1.Pod) int32 {
	text, ok := pod.Annotations[corev1.PodDeletionCost]
	if !ok {
		return 0
	}
	cost, err := strconv.ParseInt(text, 10, 32)
	if err != nil || strconv.FormatInt(cost, 10) != text {
		return 0
	}
	return int32(cost)
}

// containerRestarts has the largest number of restarts of one regular container and of one sidecar. Regular containers
// are compared first.
type containerRestarts struct{ regular, sidecar int32 }

func (c containerRestarts) compare(o containerRestarts) int {
	return cmp.Or(cmp.Compare(c.regular, o.regular), cmp.Compare(c.sidecar, o.sidecar))
}

func restartsOf(pod *corev1.Pod) containerRestarts {
	var c containerRestarts
	for _, s := range pod.Status.ContainerStatuses {
		c.regular = max(c.regular, s.RestartCount)
	}
	sidecars := map[string]bool{}
	for _, container := range pod.Spec.InitContainers {
		if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars[container.Name] = true
		}
	}
	for _, s := range pod.Status.InitContainerStatuses {
		if sidecars[s.Name] {
			c.sidecar = max(c.sidecar, s.RestartCount)
		}
	}
	return c
}

// compareAges observes the age of each ready victim, relative to the youngest ready pod.
func (r *replicaSets) compareAges(active, victims []*corev1.Pod) {
	if len(victims) == len(active) {
		return
	}
	var youngest time.Time
	for _, pod := range active {
		if controller.PodReady(pod) && pod.CreationTimestamp.After(youngest) {
			youngest = pod.CreationTimestamp.Time
		}
	}
	now := r.clock.Now()
	for _, pod := range victims {
		if age := now.Sub(youngest); controller.PodReady(pod) && age > 0 {
			r.ageRatio().WithLabelValues().Observe(float64(now.Sub(pod.CreationTimestamp.Time)) / float64(age))
		}
	}
}
