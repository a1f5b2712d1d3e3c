// Package plugins has the scheduler's own plugins, each in a file of its name. Registry lists them;
// which are on, and in which order they are asked, is the configuration's to say.
//
// Whatever one needs to remember about a pod it notes in the CycleState, and what it needs to know of a
// node is in the NodeInfo. What is in neither, as volumes and namespaces, comes from the informers' listers.
package plugins

import "github.com/coxswain-dev/coxswain/scheduler/framework"

// Registry is the plugins in tree.
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

// newPlain is the factory of a plugin that needs nothing and takes no arguments.
func newPlain(plugin framework.Plugin) framework.Factory {
	return func(args framework.Args, _ framework.Handle) (framework.Plugin, error) {
		return plugin, args.Decode(&noArgs{})
	}
}

// noArgs are the arguments of a plugin that has none.
type noArgs struct{}

var skip = framework.NewStatus("", framework.Skip)

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

// The events that several plugins wait for.
func event(resource framework.EventResource, action framework.ActionType) framework.ClusterEvent {
	return framework.ClusterEvent{Resource: resource, Action: action}
}
