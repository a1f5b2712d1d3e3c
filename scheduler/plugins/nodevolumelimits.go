package plugins

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// NodeVolumeLimits enforces the limits of CSI drivers on the number of volumes attached to a node,
// which the node's CSINode holds.
type NodeVolumeLimits struct {
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	classes     storagelisters.StorageClassLister
	nodes       storagelisters.CSINodeLister
	attachments storagelisters.VolumeAttachmentLister
}

const volumeLimitsKey = "NodeVolumeLimits/wanted"

var tooManyVolumes = framework.NewStatus("NodeVolumeLimits", framework.Unschedulable, "node(s) exceed max volume count")

func newNodeVolumeLimits(args framework.Args, h framework.Handle) (framework.Plugin, error) {
	core, storage := h.Informers().Core().V1(), h.Informers().Storage().V1()
	return &NodeVolumeLimits{
		core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister(), storage.StorageClasses().Lister(),
		storage.CSINodes().Lister(), storage.VolumeAttachments().Lister(),
	}, args.Decode(&noArgs{})
}

// Name implements framework.Plugin.
func (*NodeVolumeLimits) Name() string { return "NodeVolumeLimits" }

// csiVolume is a volume of a driver. Pods that share it attach it once.
type csiVolume struct{ driver, handle string }

// volumeDemand holds the volumes that the pod needs attached, and the volumes attached to each node, including
// volumes of deleted pods.
type volumeDemand struct {
	needed   map[csiVolume]struct{}
	attached map[string][]csiVolume
}

// PreFilter implements framework.PreFilterPlugin.
func (p *NodeVolumeLimits) PreFilter(state *framework.CycleState, pod *framework.PodInfo, _ framework.Snapshot) (
	*framework.PreFilterResult, *framework.Status) {
	needed := map[csiVolume]struct{}{}
	p.addVolumes(needed, pod)
	if len(needed) == 0 {
		return nil, skip
	}
	state.Write(volumeLimitsKey, &volumeDemand{needed, p.attachedVolumes()})
	return nil, nil
}

// addVolumes adds the CSI volumes of a pod's claims.
func (p *NodeVolumeLimits) addVolumes(set map[csiVolume]struct{}, pod *framework.PodInfo) {
	for _, key := range pod.Claims {
		namespace, name := splitKey(key)
		claim, err := p.claims.PersistentVolumeClaims(namespace).Get(name)
		if err != nil {
			continue // VolumeBinding reports it
		}
		if v, ok := p.csiVolumeOf(claim); ok {
			set[v] = struct{}{}
		}
	}
}

// csiVolumeOf returns the volume of a claim. A volume that is not provisioned yet is identified by its
// claim.
func (p *NodeVolumeLimits) csiVolumeOf(claim *corev1.PersistentVolumeClaim) (csiVolume, bool) {
	if claim.Spec.VolumeName != "" {
		if v, err := p.volumes.Get(claim.Spec.VolumeName); err == nil {
			if v.Spec.CSI == nil {
				return csiVolume{}, false
			}
			return csiVolume{v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle}, true
		}
	}
	class, err := p.classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	if err != nil {
		return csiVolume{}, false
	}
	return csiVolume{class.Provisioner, "claim:" + claimKey(claim)}, true
}

// Filter implements framework.FilterPlugin.
func (p *NodeVolumeLimits) Filter(state *framework.CycleState, _ *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	demand, ok := state.Read(volumeLimitsKey).(*volumeDemand)
	limits := p.limits(node.Node.Name)
	if !ok || len(limits) == 0 {
		return nil
	}
	attached := map[csiVolume]struct{}{}
	if len(node.Claims) > 0 {
		for _, other := range node.Pods {
			p.addVolumes(attached, other)
		}
	}
	for _, v := range demand.attached[node.Node.Name] {
		attached[v] = struct{}{}
	}
	count, more := map[string]int64{}, map[string]int64{}
	for v := range attached {
		count[v.driver]++
	}
	for v := range demand.needed {
		if _, there := attached[v]; !there {
			more[v.driver]++
		}
	}
	for driver, n := range more {
		if limit, ok := limits[driver]; ok && count[driver]+n > limit {
			return tooManyVolumes
		}
	}
	return nil
}

// limits returns how many volumes of each driver a node can attach.
func (p *NodeVolumeLimits) limits(node string) map[string]int64 {
	csiNode, err := p.nodes.Get(node)
	if err != nil {
		return nil
	}
	var limits map[string]int64
	for _, d := range csiNode.Spec.Drivers {
		if d.Allocatable == nil || d.Allocatable.Count == nil {
			continue
		}
		if limits == nil {
			limits = map[string]int64{}
		}
		limits[d.Name] = int64(*d.Allocatable.Count)
	}
	return limits
}

func (p *NodeVolumeLimits) attachedVolumes() map[string][]csiVolume {
	attached := map[string][]csiVolume{}
	attachments, _ := p.attachments.List(labels.Everything()) // a lister has no errors
	for _, a := range attachments {
		if a.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		if v, err := p.volumes.Get(*a.Spec.Source.PersistentVolumeName); err == nil && v.Spec.CSI != nil {
			attached[a.Spec.NodeName] = append(attached[a.Spec.NodeName],
				csiVolume{v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle})
		}
	}
	return attached
}

// EventsToRegister implements framework.EnqueueExtensions.
func (p *NodeVolumeLimits) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{
		{Event: event(framework.CSINode, framework.Add|framework.Update)},
		{Event: event(framework.Node, framework.Add)},
		{Event: event(framework.AssignedPod, framework.Delete),
			Helps: func(_ *framework.PodInfo, change *framework.Change) bool {
				deleted, ok := change.Old.(*framework.PodInfo)
				return !ok || len(deleted.Claims) > 0
			}},
		{Event: event(framework.PersistentVolumeClaim, framework.Add|framework.Update), Helps: isOwnClaim},
		{Event: event(framework.VolumeAttachment, framework.Delete)},
	}
}
