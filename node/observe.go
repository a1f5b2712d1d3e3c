package node

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/runtime"
	"github.com/coxswain-dev/coxswain/node/simulated"
)

// PIDs is the maximum number of processes of a simulated node.
const PIDs = 32768

// observe returns the total and free resources of a node. A simulated node has its capacity, minus the annotated usage
// of its pods and of the node itself.
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

// observed returns the signals of resources. Unknown resources have none.
func observed(r runtime.Resources) map[signal]runtime.Supply {
	seen := map[signal]runtime.Supply{}
	for name, s := range map[signal]runtime.Supply{
		memoryAvailable: r.Memory, nodefsAvailable: r.Disk, nodefsInodesFree: r.Inodes, pidAvailable: r.PIDs,
	} {
		if s.Capacity > 0 {
			seen[name] = s
		}
	}
	return seen
}

// podUse returns a pod's usage of a resource.
func (a *agent) podUse(ctx context.Context, pod *corev1.Pod, name corev1.ResourceName, now time.Time) podUse {
	u := podUse{pod: pod, containers: map[string]int64{}}
	if m, ok := a.runtime.(runtime.Machine); ok && (name == corev1.ResourceEphemeralStorage || name == resourceInodes) {
		bytes, inodes := m.DiskUse(pod.UID)
		if u.taken = bytes; name == resourceInodes {
			u.taken = inodes
		}
		return u
	}
	s, _ := a.podStats(ctx, pod, now)
	for i := range s.Containers {
		c := &s.Containers[i]
		taken := c.usage.Memory
		switch name {
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
