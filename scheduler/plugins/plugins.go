// Package plugins has the scheduler's own plugins, each in a file of its name. Registry lists them; the
// configuration decides which are enabled, and in which order they are called.
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

// newPlain returns the factory of a plugin that needs nothing and takes no arguments.
func newPlain(plugin framework.Plugin) framework.Factory {
	return func(args framework.Args, _ framework.Handle) (framework.Plugin, error) {
		return plugin, args.Decode(&noArgs{})
	}
}

// noArgs are the arguments of a plugin that has none.
type noArgs struct{}

var skip = framework.NewStatus("", framework.Skip)

// normalize scales scores so that the best is MaxNodeScore. With reverse the highest raw score is the
// worst.
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

// The events that several plugins wait for.
func event(resource framework.EventResource, action framework.ActionType) framework.ClusterEvent {
	return framework.ClusterEvent{Resource: resource, Action: action}
}
