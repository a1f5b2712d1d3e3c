// Package plugins has the scheduler's own plugins, each in a file of its name. Default lists those
// that are on, in the order in which they are asked.
//
// They are stateless: whatever one needs to remember about a pod it notes in the CycleState, and
// what it needs to know of a node is in the NodeInfo.
package plugins

import "github.com/coxswain-dev/coxswain/scheduler/framework"

// Default is the set of plugins of the default profile. The cheap filters that refuse most come first.
func Default() []framework.Plugin {
	return []framework.Plugin{
		SchedulingGates{},
		NodeUnschedulable{},
		NodeName{},
		TaintToleration{},
		NodeAffinity{},
		NodePorts{},
		NodeResourcesFit{},
		NodeResourcesBalancedAllocation{},
	}
}

// normalize stretches scores so that the best has MaxNodeScore. With reverse the highest raw
// score is the worst.
func normalize(scores []int64, reverse bool) {
	var most int64
	for _, s := range scores {
		most = max(most, s)
	}
	for i, s := range scores {
		if most > 0 {
			s = s * framework.MaxNodeScore / most
		}
		if reverse {
			s = framework.MaxNodeScore - s
		}
		scores[i] = s
	}
}
