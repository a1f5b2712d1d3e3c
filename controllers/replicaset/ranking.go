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

// choose returns the n of the pods that will be missed least. related are all pods whose
// spread over nodes counts, those of pods included.
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

// rank is all that decides how soon a pod goes.
type rank struct {
	pod        *corev1.Pod
	assigned   bool
	phase      int
	ready      bool
	cost       int32
	doubled    int
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

// compare orders what goes first before what goes later:
//
//  1. not assigned to a node before assigned,
//  2. pending before unknown before running,
//  3. not ready before ready,
//  4. low deletion cost before high,
//  5. on a node with many of its kind before on a node with few,
//  6. ready for a short time before ready for long,
//  7. restarted often before restarted seldom,
//  8. young before old.
//
// Pods whose ages are of one order of magnitude are as good as each other: there the uid
// decides, so that a scale-down does not always hit the newest and, with it, one zone or
// node (KEP-2185).
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

// age is a moment in the past and the order of magnitude of the time since.
type age struct {
	at        time.Time
	magnitude int
}

func ageOf(at, now time.Time) age {
	a := age{at: at, magnitude: -1}
	if d := now.Sub(at); d > 0 {
		a.magnitude = int(math.Log10(float64(d)))
	}
	return a
}

// youngFirst puts the shorter age first; one that is not known counts as shortest.
func (r rank) youngFirst(a age, o rank, b age) int {
	switch {
	case a.at.Equal(b.at):
		return 0
	case a.at.IsZero():
		return -1
	case b.at.IsZero():
		return 1
	}
	return cmp.Or(cmp.Compare(a.magnitude, b.magnitude), cmp.Compare(r.pod.UID, o.pod.UID))
}

func phaseOrder(p corev1.PodPhase) int {
	switch p {
	case corev1.PodPending:
		return 0
	case corev1.PodUnknown:
		return 1
	}
	return 2
}

// deletionCost reads the annotation by which users protect pods; what is not an int32
// without a sign or leading zeros that it does not need counts as nothing.
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

// containerRestarts counts the most restarts of one container; those of ordinary containers
// count before those of sidecars.
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
