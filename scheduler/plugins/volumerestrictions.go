package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// VolumeRestrictions keeps a claim with access mode ReadWriteOncePod to one pod in the cluster, and a cloud
// disk that can be attached for writing once to one pod of a node.
type VolumeRestrictions struct {
	claims corelisters.PersistentVolumeClaimLister
}

const oncePodKey = "VolumeRestrictions/oncePod"

var (
	usedByAnother = framework.NewStatus("VolumeRestrictions", framework.Unschedulable,
		"node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode")
	diskConflict = framework.NewStatus("VolumeRestrictions", framework.Unschedulable, "node(s) had no available disk")
)

func newVolumeRestrictions(args framework.Args, h framework.Handle) (framework.Plugin, error) {
	return &VolumeRestrictions{h.Informers().Core().V1().PersistentVolumeClaims().Lister()}, args.Decode(&noArgs{})
}

// Name implements framework.Plugin.
func (*VolumeRestrictions) Name() string { return "VolumeRestrictions" }

// oncePodState holds the claims that only one pod may use, and the number of their users.
type oncePodState struct {
	claims []string
	users  int
}

// Clone implements framework.Cloner.
func (s *oncePodState) Clone() any { c := *s; return &c }

// PreFilter implements framework.PreFilterPlugin.
func (p *VolumeRestrictions) PreFilter(state *framework.CycleState, pod *framework.PodInfo, nodes framework.Snapshot) (
	*framework.PreFilterResult, *framework.Status) {
	s := &oncePodState{}
	for _, key := range pod.Claims {
		namespace, name := splitKey(key)
		claim, err := p.claims.PersistentVolumeClaims(namespace).Get(name)
		if err != nil {
			continue // VolumeBinding reports it
		}
		if slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
			s.claims = append(s.claims, key)
		}
	}
	if len(s.claims) == 0 && !hasDisks(pod.Pod) {
		return nil, skip
	}
	if len(s.claims) > 0 {
		for _, node := range nodes.Nodes() {
			for _, key := range s.claims {
				s.users += node.Claims[key]
			}
		}
	}
	state.Write(oncePodKey, s)
	return nil, nil
}

// Filter implements framework.FilterPlugin.
func (p *VolumeRestrictions) Filter(state *framework.CycleState, pod *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	if s, ok := state.Read(oncePodKey).(*oncePodState); ok && s.users > 0 {
		return usedByAnother
	}
	if !hasDisks(pod.Pod) {
		return nil
	}
	for _, other := range node.Pods {
		if sharesDisk(pod.Pod, other.Pod) {
			return diskConflict
		}
	}
	return nil
}

// AddPod implements framework.PreFilterExtensions.
func (p *VolumeRestrictions) AddPod(state *framework.CycleState, _, added *framework.PodInfo,
	_ *framework.NodeInfo) *framework.Status {
	return countUsers(state, added, 1)
}

// RemovePod implements framework.PreFilterExtensions.
func (p *VolumeRestrictions) RemovePod(state *framework.CycleState, _, removed *framework.PodInfo,
	_ *framework.NodeInfo) *framework.Status {
	return countUsers(state, removed, -1)
}

func countUsers(state *framework.CycleState, other *framework.PodInfo, sign int) *framework.Status {
	if s, ok := state.Read(oncePodKey).(*oncePodState); ok {
		for _, key := range s.claims {
			if slices.Contains(other.Claims, key) {
				s.users += sign
			}
		}
	}
	return nil
}

func hasDisks(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
	})
}

func sharesDisk(a, b *corev1.Pod) bool {
	for i := range a.Spec.Volumes {
		for j := range b.Spec.Volumes {
			if sameDisk(&a.Spec.Volumes[i], &b.Spec.Volumes[j]) {
				return true
			}
		}
	}
	return false
}

// sameDisk reports whether both volumes are one disk that they cannot share. Both may attach some kinds of disks
// read-only.
func sameDisk(a, b *corev1.Volume) bool {
	switch {
	case a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		x, y := a.GCEPersistentDisk, b.GCEPersistentDisk
		return x.PDName == y.PDName && !(x.ReadOnly && y.ReadOnly)
	case a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case a.ISCSI != nil && b.ISCSI != nil:
		return a.ISCSI.IQN == b.ISCSI.IQN && !(a.ISCSI.ReadOnly && b.ISCSI.ReadOnly)
	case a.RBD != nil && b.RBD != nil:
		x, y := a.RBD, b.RBD
		overlap := slices.ContainsFunc(x.CephMonitors, func(m string) bool {
			return slices.Contains(y.CephMonitors, m)
		})
		return overlap && x.RBDPool == y.RBDPool && x.RBDImage == y.RBDImage && !(x.ReadOnly && y.ReadOnly)
	}
	return false
}

// EventsToRegister implements framework.EnqueueExtensions.
func (p *VolumeRestrictions) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{
		{Event: event(framework.AssignedPod, framework.Delete),
			Helps: func(pod *framework.PodInfo, change *framework.Change) bool {
				deleted, ok := change.Old.(*framework.PodInfo)
				return !ok || sharesDisk(pod.Pod, deleted.Pod) ||
					slices.ContainsFunc(pod.Claims, func(key string) bool {
						return slices.Contains(deleted.Claims, key)
					})
			}},
		{Event: event(framework.Node, framework.Add)},
		{Event: event(framework.PersistentVolumeClaim, framework.Add|framework.Update), Helps: isOwnClaim},
	}
}
