package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const nodeSelectorAnnotation = "scheduler.alpha.kubernetes.io/node-selector"

// podNodeSelector restricts the pods of a namespace to some nodes. Its configuration contains, by namespace, the
// labels that its pods may select, and under "clusterDefaultNodeSelector" the selector of namespaces without the
// annotation.
type podNodeSelector struct {
	cluster Cluster
	config  struct {
		Selectors map[string]string `json:"podNodeSelectorPluginConfig"`
	}
}

func newPodNodeSelector(env *Env) (Plugin, error) {
	p := &podNodeSelector{cluster: env.Cluster}
	return p, env.Options.Config.into("PodNodeSelector", &p.config)
}

func (p *podNodeSelector) Mutate(ctx context.Context, a *Attributes) error {
	pod := a.Object.(*corev1.Pod)
	selector, err := p.selector(ctx, a)
	if err != nil {
		return err
	}
	if labels.Conflicts(selector, pod.Spec.NodeSelector) {
		return a.Forbid(errors.New("pod node label selector conflicts with its namespace node label selector"))
	}
	if len(selector) > 0 {
		merged := maps.Clone(map[string]string(selector))
		maps.Copy(merged, pod.Spec.NodeSelector)
		pod.Spec.NodeSelector = merged
	}
	return nil
}

func (p *podNodeSelector) Validate(_ context.Context, a *Attributes) error {
	text, ok := p.config.Selectors[a.Namespace]
	if !ok {
		return nil
	}
	allowed, err := labels.ConvertSelectorToLabelsMap(text)
	if err != nil {
		return fmt.Errorf("PodNodeSelector's configuration for namespace %s: %w", a.Namespace, err)
	}
	for key, value := range a.Object.(*corev1.Pod).Spec.NodeSelector {
		if allowed[key] != value {
			return a.Forbid(errors.New("pod node label selector labels conflict with its namespace whitelist"))
		}
	}
	return nil
}

func (p *podNodeSelector) selector(ctx context.Context, a *Attributes) (labels.Set, error) {
	ns, err := get[*corev1.Namespace](ctx, p.cluster, namespaces, "", a.Namespace)
	if err != nil {
		return nil, notFound(err, namespaces, a.Namespace)
	}
	text, ok := ns.Annotations[nodeSelectorAnnotation]
	if !ok {
		text = p.config.Selectors["clusterDefaultNodeSelector"]
	}
	selector, err := labels.ConvertSelectorToLabelsMap(text)
	if err != nil {
		return nil, a.Forbid(fmt.Errorf("annotation %s of namespace %s: %w", nodeSelectorAnnotation, ns.Name, err))
	}
	return selector, nil
}
