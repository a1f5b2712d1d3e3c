package plugins

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// VolumeZone keeps a pod to the zone and region that the labels of its bound volumes name.
type VolumeZone struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
}

const volumeZoneKey = "VolumeZone/state"

var (
	wrongZone = framework.NewStatus("VolumeZone", framework.UnschedulableAndUnresolvable,
		"node(s) had no available volume zone")
	zoneKeys = []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
		corev1.LabelFailureDomainBetaRegion}
	// The labels once had other names. Nodes and volumes may have either.
	zoneAlias = map[string]string{
		corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
		corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
	}
)

func newVolumeZone(args framework.Args, h framework.Handle) (framework.Plugin, error) {
	core := h.Informers().Core().V1()
	return &VolumeZone{core.PersistentVolumeClaims().Lister(), core.PersistentVolumes().Lister()},
		args.Decode(&noArgs{})
}

// Name implements framework.Plugin.
func (*VolumeZone) Name() string { return "VolumeZone" }

// zoneDemand is a label of a volume: the node must have one of the values.
type zoneDemand struct {
	key    string
	values []string
}

// PreFilter implements framework.PreFilterPlugin. VolumeBinding handles claims without a volume.
func (p *VolumeZone) PreFilter(state *framework.CycleState, pod *framework.PodInfo, _ framework.Snapshot) (
	*framework.PreFilterResult, *framework.Status) {
	var demands []zoneDemand
	for _, key := range pod.Claims {
		namespace, name := splitKey(key)
		claim, err := p.claims.PersistentVolumeClaims(namespace).Get(name)
		if err != nil || claim.Spec.VolumeName == "" {
			continue
		}
		v, err := p.volumes.Get(claim.Spec.VolumeName)
		if err != nil {
			continue
		}
		for _, key := range zoneKeys {
			if value, ok := v.Labels[key]; ok {
				demands = append(demands, zoneDemand{key, strings.Split(value, "__")})
			}
		}
	}
	if len(demands) == 0 {
		return nil, skip
	}
	state.Write(volumeZoneKey, demands)
	return nil, nil
}

// Filter implements framework.FilterPlugin. A node without any of the labels is in a cluster without zones.
func (p *VolumeZone) Filter(state *framework.CycleState, _ *framework.PodInfo,
	node *framework.NodeInfo) *framework.Status {
	demands, _ := state.Read(volumeZoneKey).([]zoneDemand)
	zoned := false
	for _, key := range zoneKeys {
		_, ok := node.Node.Labels[key]
		zoned = zoned || ok
	}
	if !zoned {
		return nil
	}
	for _, d := range demands {
		value, ok := node.Node.Labels[d.key]
		if !ok {
			value = node.Node.Labels[zoneAlias[d.key]]
		}
		matches := false
		for _, v := range d.values {
			matches = matches || v == value
		}
		if !matches {
			return wrongZone
		}
	}
	return nil
}

// EventsToRegister implements framework.EnqueueExtensions.
func (p *VolumeZone) EventsToRegister() []framework.EventHint {
	return []framework.EventHint{
		{Event: event(framework.Node, framework.Add|framework.UpdateNodeLabel)},
		{Event: event(framework.PersistentVolumeClaim, framework.Add|framework.Update), Helps: isOwnClaim},
		{Event: event(framework.PersistentVolume, framework.Add|framework.Update)},
	}
}

func splitKey(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}
