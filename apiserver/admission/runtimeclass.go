package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// runtimeClass gives pods the overhead, node selector and tolerations of their class.
// https://kubernetes.io/docs/concepts/containers/runtime-class/
type runtimeClass struct{ cluster Cluster }

func newRuntimeClass(env *Env) (Plugin, error) { return &runtimeClass{env.Cluster}, nil }

// class returns the pod's RuntimeClass, nil if it names none.
func (p *runtimeClass) class(ctx context.Context, a *Attributes) (*corev1.Pod, *nodev1.RuntimeClass, error) {
	pod := a.Object.(*corev1.Pod)
	if pod.Spec.RuntimeClassName == nil {
		return pod, nil, nil
	}
	class, err := get[*nodev1.RuntimeClass](ctx, p.cluster, runtimeClasses, "", *pod.Spec.RuntimeClassName)
	if errors.Is(err, ErrNotFound) {
		err = a.Forbid(fmt.Errorf("pod rejected: RuntimeClass %q not found", *pod.Spec.RuntimeClassName))
	}
	return pod, class, err
}

func (p *runtimeClass) Mutate(ctx context.Context, a *Attributes) error {
	pod, class, err := p.class(ctx, a)
	if err != nil || class == nil {
		return err
	}
	if class.Overhead != nil {
		if pod.Spec.Overhead != nil && !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return a.Forbid(errOverhead)
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling == nil {
		return nil
	}
	for key, value := range class.Scheduling.NodeSelector {
		if own, ok := pod.Spec.NodeSelector[key]; ok && own != value {
			return a.Forbid(fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; "+
				"pod.spec.nodeSelector[%s] = %s", key, value, key, own))
		}
	}
	if len(class.Scheduling.NodeSelector) > 0 && pod.Spec.NodeSelector == nil {
		pod.Spec.NodeSelector = map[string]string{}
	}
	maps.Copy(pod.Spec.NodeSelector, class.Scheduling.NodeSelector)
	pod.Spec.Tolerations, err = mergeTolerations(ctx, pod.Spec.Tolerations, class.Scheduling.Tolerations)
	return err
}

var errOverhead = errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")

// Validate rejects an overhead that differs from the class's.
func (p *runtimeClass) Validate(ctx context.Context, a *Attributes) error {
	pod, class, err := p.class(ctx, a)
	switch {
	case err != nil:
		return err
	case class != nil && class.Overhead != nil:
		if !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return a.Forbid(errOverhead)
		}
	case pod.Spec.Overhead != nil:
		return a.Forbid(
			errors.New("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"))
	}
	return nil
}
