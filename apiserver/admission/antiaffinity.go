package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// antiAffinityTopology keeps pods from reserving whole zones.
type antiAffinityTopology struct{}

func newAntiAffinityTopology(*Env) (Plugin, error) { return antiAffinityTopology{}, nil }

func (antiAffinityTopology) Validate(_ context.Context, a *Attributes) error {
	affinity := a.Object.(*corev1.Pod).Spec.Affinity
	if affinity == nil || affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return a.Forbid(fmt.Errorf("affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but "+
				"only key %v is allowed",
				term.TopologyKey, corev1.LabelHostname))
		}
	}
	return nil
}
