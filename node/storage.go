package node

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// limitStorage evicts the pods of a node that exceed their limits of disk usage, as the kubelet does: regardless of the
// free space, and all of them at once. Counting files takes time, so the next check is at least ten times as long after
// this one as this one took.
func (a *agent) limitStorage(n *hostedNode) {
	machine, ok := a.runtime.(runtime.Machine)
	if !ok {
		return
	}
	began := a.Clock.Now()
	for _, pod := range a.podsOf(n) {
		if pod.Status.StartTime == nil || phaseEnded(pod.Status.Phase) || a.critical(pod) || !limitsStorage(pod) {
			continue
		}
		message := exceedsStorage(pod, machine.LocalStorage(pod))
		if message != "" && a.terminate(pod, "Evicted", message, leastEvictionGrace, a.Clock.Now()) {
			a.Event(pod, corev1.EventTypeWarning, "Evicted", message)
		}
	}
	a.nodeQueue.AddAfter(nodeTask{n.name, limitStorage}, max(a.Eviction.StorageEvery, 10*a.Clock.Since(began)))
}

// storageLimit returns a container's or a pod's limit of disk usage; ok is false if there is none.
func storageLimit(list corev1.ResourceList) (bytes int64, ok bool) {
	q, ok := list[corev1.ResourceEphemeralStorage]
	return amount.Of(q, 0), ok && !q.IsZero()
}

// limitsStorage reports whether a pod has limits that its files can exceed.
func limitsStorage(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if e := pod.Spec.Volumes[i].EmptyDir; e != nil && e.SizeLimit != nil {
			return true
		}
	}
	for _, c := range runtime.Containers(pod) {
		if _, ok := storageLimit(c.Resources.Limits); ok {
			return true
		}
	}
	return false
}

// exceedsStorage describes the part of a pod that exceeds its limit, in the kubelet's words; "" if there is none.
func exceedsStorage(pod *corev1.Pod, taken runtime.LocalStorage) string {
	all := int64(0)
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault {
			continue
		}
		all = amount.Plus(all, taken.Volumes[v.Name])
		if limit := v.EmptyDir.SizeLimit; limit != nil && !limit.IsZero() &&
			taken.Volumes[v.Name] > amount.Of(*limit, 0) {
			return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, limit.String())
		}
	}
	for _, n := range taken.Containers {
		all = amount.Plus(all, n)
	}
	limits := podresource.PodLimits(pod, podresource.PodResourcesOptions{})
	if limit, ok := storageLimit(limits); ok && all > limit && eachLimitsStorage(pod) {
		q := limits[corev1.ResourceEphemeralStorage]
		return fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", q.String())
	}
	for _, c := range runtime.Containers(pod) {
		if limit, ok := storageLimit(c.Resources.Limits); ok && taken.Containers[c.Name] > limit {
			q := c.Resources.Limits[corev1.ResourceEphemeralStorage]
			return fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, q.String())
		}
	}
	return ""
}

// eachLimitsStorage reports whether all containers of a pod have limits, so that their sum limits the pod.
func eachLimitsStorage(pod *corev1.Pod) bool {
	for i := range pod.Spec.Containers {
		if _, ok := storageLimit(pod.Spec.Containers[i].Resources.Limits); !ok {
			return false
		}
	}
	return true
}
