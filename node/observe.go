package node

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

// PIDs is how many processes a simulated node can have.
const PIDs = 32768

// observe is what there is on a node, in all and left. A simulated one has its capacity, less what its pods
// take by their annotations, and the node by its own.
func (a *agent) observe(n *hostedNode) map[signal]runtime.Supply {
	if m, ok := a.runtime.(runtime.Machine); ok {
		return observed(m.Resources())
	}
	taken := n.acts().Taken
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
		one := simulated.UsageOf(pod)
		taken.Memory = amount.Plus(taken.Memory, amount.Times(running, one.Memory))
		taken.Disk = amount.Plus(taken.Disk, amount.Times(running, one.Disk))
		taken.PIDs = amount.Plus(taken.PIDs, amount.Times(running, one.PIDs))
	}
	left := func(capacity, taken int64) runtime.Supply {
		return runtime.Supply{Capacity: capacity, Available: max(0, capacity-taken)}
	}
	return observed(runtime.Resources{
		Memory: left(a.Capacity.Memory().Value(), taken.Memory),
		Disk:   left(a.Capacity.StorageEphemeral().Value(), taken.Disk),
		PIDs:   left(PIDs, taken.PIDs),
	})
}

// observed are the signals of what there is.
func observed(r runtime.Resources) map[signal]runtime.Supply {
	seen := map[signal]runtime.Supply{}
	for of, s := range map[signal]runtime.Supply{
		memoryAvailable: r.Memory, nodefsAvailable: r.Disk, nodefsInodesFree: r.Inodes, pidAvailable: r.PIDs,
	} {
		if s.Capacity > 0 {
			seen[of] = s
		}
	}
	return seen
}

// podUse is what a pod takes of a resource.
func (a *agent) podUse(ctx context.Context, pod *corev1.Pod, of corev1.ResourceName, now time.Time) podUse {
	u := podUse{pod: pod, containers: map[string]int64{}}
	if m, ok := a.runtime.(runtime.Machine); ok && (of == corev1.ResourceEphemeralStorage || of == resourceInodes) {
		bytes, inodes := m.DiskUse(pod.UID)
		if u.taken = bytes; of == resourceInodes {
			u.taken = inodes
		}
		return u
	}
	s, _ := a.podStats(ctx, pod, now)
	for i := range s.Containers {
		c := &s.Containers[i]
		taken := c.usage.Memory
		switch of {
		case corev1.ResourceEphemeralStorage:
			taken = c.usage.Disk
		case resourcePIDs:
			taken = c.usage.PIDs
		case resourceInodes:
			taken = 0
		}
		u.containers[c.Name] = taken
		u.taken = amount.Plus(u.taken, taken)
	}
	return u
}
