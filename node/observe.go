package node

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// simulatedPIDs is how many processes a simulated node can have.
const simulatedPIDs = 32768

// observe is what there is on a node, in all and left. A simulated one has its capacity, less what its pods take by their
// annotations, and the node by its own.
func (a *agent) observe(n *simNode) map[signal]observation {
	if r, ok := a.runtime.(interface{ observe() map[signal]observation }); ok {
		return r.observe()
	}
	taken := n.acts().taken
	for _, pod := range a.podsOf(n) {
		if phaseEnded(pod.Status.Phase) {
			continue
		}
		running := 0
		for i := range pod.Status.ContainerStatuses {
			if pod.Status.ContainerStatuses[i].State.Running != nil {
				running++
			}
		}
		one := simulatedUse(pod)
		taken.memory = plus(taken.memory, times(running, one.memory))
		taken.disk = plus(taken.disk, times(running, one.disk))
		taken.pids = plus(taken.pids, times(running, one.pids))
	}
	left := func(capacity, taken int64) observation { return observation{capacity, max(0, capacity-taken)} }
	return map[signal]observation{
		memoryAvailable: left(a.Capacity.Memory().Value(), taken.memory),
		nodefsAvailable: left(a.Capacity.StorageEphemeral().Value(), taken.disk),
		pidAvailable:    left(simulatedPIDs, taken.pids),
	}
}

// podUse is what a pod takes of a resource.
func (a *agent) podUse(pod *corev1.Pod, of corev1.ResourceName, now time.Time) podUse {
	u := podUse{pod: pod, containers: map[string]int64{}}
	if r, ok := a.runtime.(interface {
		diskUse(pod *corev1.Pod) (bytes, inodes int64)
	}); ok && (of == corev1.ResourceEphemeralStorage || of == resourceInodes) {
		bytes, inodes := r.diskUse(pod)
		if u.taken = bytes; of == resourceInodes {
			u.taken = inodes
		}
		return u
	}
	s, _ := a.podStats(pod, now)
	for i := range s.Containers {
		c := &s.Containers[i]
		taken := c.usage.memory
		switch of {
		case corev1.ResourceEphemeralStorage:
			taken = c.usage.disk
		case resourcePIDs:
			taken = c.usage.pids
		case resourceInodes:
			taken = 0
		}
		u.containers[c.Name] = taken
		u.taken = plus(u.taken, taken)
	}
	return u
}
