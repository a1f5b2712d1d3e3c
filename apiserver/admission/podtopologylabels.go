package admission

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
)

// podTopologyLabels copies the zone and region labels of a pod's node to the pod (KEP-4742).
type podTopologyLabels struct{ cluster Cluster }

func newPodTopologyLabels(env *Env) (Plugin, error) { return &podTopologyLabels{env.Cluster}, nil }

func (p *podTopologyLabels) Mutate(ctx context.Context, a *Attributes) error {
	var name string
	switch obj := a.Object.(type) {
	case *corev1.Pod:
		name = obj.Spec.NodeName
	case *corev1.Binding:
		name = obj.Target.Name
	}
	if name == "" {
		return nil
	}
	node, err := get[*corev1.Node](ctx, p.cluster, nodes, "", name)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	labels := a.Object.GetLabels()
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		value, ok := node.Labels[key]
		if !ok {
			continue
		}
		if labels == nil {
			labels = map[string]string{}
		}
		labels[key] = value
	}
	a.Object.SetLabels(labels)
	return nil
}
