// Package plugins contains the scheduler's own plugins, each in a file with its name. Registry lists them. The
// configuration decides which are enabled, their order and the weights of their scores; package config has the
// defaults.
//
// A plugin keeps its data about a pod in the CycleState, and finds the state of a node in the NodeInfo.
// Other objects, such as volumes and namespaces, come from the informers' listers.
package plugins

import "github.com/coxswain-dev/coxswain/scheduler/framework"

// Registry returns the in-tree plugins.
func Registry() framework.Registry {
	return framework.Registry{
		"SchedulingGates":                 newPlain(SchedulingGates{}),
		"PrioritySort":                    newPlain(PrioritySort{}),
		"NodeUnschedulable":               newPlain(NodeUnschedulable{}),
		"NodeName":                        newPlain(NodeName{}),
		"TaintToleration":                 newPlain(TaintToleration{}),
		"NodePorts":                       newPlain(NodePorts{}),
		"NodeAffinity":                    newNodeAffinity,
		"NodeResourcesFit":                newNodeResourcesFit,
		"NodeResourcesBalancedAllocation": newNodeResourcesBalancedAllocation,
		"ImageLocality":                   newPlain(&ImageLocality{}),
		"PodTopologySpread":               newPodTopologySpread,
		"InterPodAffinity":                newInterPodAffinity,
		"VolumeRestrictions":              newVolumeRestrictions,
		"NodeVolumeLimits":                newNodeVolumeLimits,
		"VolumeBinding":                   newVolumeBinding,
		"VolumeZone":                      newVolumeZone,
		"DefaultPreemption":               newDefaultPreemption,
		"DefaultBinder":                   newDefaultBinder,
	}
}

// newPlain returns the factory of a plugin that needs no handle and takes no arguments.
func newPlain(plugin framework.Plugin) framework.Factory {
	return func(args framework.Args, _ framework.Handle) (framework.Plugin, error) {
		return plugin, args.Decode(&noArgs{})
	}
}

// noArgs are the arguments of a plugin that has none.
type noArgs struct{}

var skip = framework.NewStatus("", framework.Skip)

// normalize scales scores so that the best becomes MaxNodeScore. With reverse the highest raw score is the worst.
func normalize(scores []int64, reverse bool) {
	var largest int64
	for _, s := range scores {
		largest = max(largest, s)
	}
	for i, s := range scores {
		if largest > 0 {
			s = s * framework.MaxNodeScore / largest
		}
		if reverse {
			s = framework.MaxNodeScore - s
		}
		scores[i] = s
	}
}

// event returns an event that a plugin registers for.
func event(resource framework.EventResource, action framework.ActionType) framework.ClusterEvent {
	return framework.ClusterEvent{Resource: resource, Action: action}
}
