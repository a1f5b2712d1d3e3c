package admission

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/utils/ptr"
)

// priority resolves the name of a pod's PriorityClass.
// https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
type priority struct{ cluster Cluster }

func newPriority(env *Env) (Plugin, error) { return &priority{env.Cluster}, nil }

func (p *priority) Mutate(ctx context.Context, a *Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	if a.Operation == Update {
		keepPriority(pod, a.Old.(*corev1.Pod))
		return nil
	}
	class, err := p.classOf(ctx, a, pod)
	if err != nil {
		return err
	}
	value, policy := int32(0), corev1.PreemptLowerPriority
	if class != nil {
		pod.Spec.PriorityClassName = class.Name
		value, policy = class.Value, ptr.Deref(class.PreemptionPolicy, policy)
	}
	if sent := pod.Spec.Priority; sent != nil && *sent != value {
		return a.Forbid(fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; "+
			"priority admission controller computed %d from the given PriorityClass name", *sent, value))
	}
	if sent := pod.Spec.PreemptionPolicy; sent != nil && *sent != policy {
		return a.Forbid(fmt.Errorf("the string value of PreemptionPolicy (%s) must not be provided in pod spec; "+
			"priority admission controller computed %s from the given PriorityClass name", *sent, policy))
	}
	pod.Spec.Priority, pod.Spec.PreemptionPolicy = &value, &policy
	return nil
}

// keepPriority keeps the values that Mutate set when the pod was created, for updates whose manifest lacks them.
func keepPriority(pod, old *corev1.Pod) {
	if pod.Spec.Priority == nil {
		pod.Spec.Priority = old.Spec.Priority
	}
	if pod.Spec.PreemptionPolicy == nil {
		pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
	}
	if pod.Spec.PriorityClassName == "" {
		pod.Spec.PriorityClassName = old.Spec.PriorityClassName
	}
}

// classOf returns the pod's class, or the default one, or nil.
func (p *priority) classOf(ctx context.Context, a *Attributes, pod *corev1.Pod) (*schedulingv1.PriorityClass, error) {
	name := pod.Spec.PriorityClassName
	if name == "" {
		return p.globalDefault(ctx, "")
	}
	class, err := get[*schedulingv1.PriorityClass](ctx, p.cluster, priorityClasses, "", name)
	if errors.Is(err, ErrNotFound) {
		return nil, a.Forbid(fmt.Errorf("no PriorityClass with name %v was found", name))
	}
	return class, err
}

// globalDefault returns the class of pods that do not name one. Two servers may have admitted one each: the lowest
// counts.
func (p *priority) globalDefault(ctx context.Context, besides string) (*schedulingv1.PriorityClass, error) {
	classes, err := list[*schedulingv1.PriorityClass](ctx, p.cluster, priorityClasses, "")
	var lowest *schedulingv1.PriorityClass
	for _, c := range classes {
		if c.GlobalDefault && c.Name != besides && (lowest == nil || c.Value < lowest.Value) {
			lowest = c
		}
	}
	return lowest, err
}

// Validate allows one global default.
func (p *priority) Validate(ctx context.Context, a *Attributes) error {
	class, ok := a.Object.(*schedulingv1.PriorityClass)
	if !ok || !class.GlobalDefault {
		return nil
	}
	other, err := p.globalDefault(ctx, class.Name)
	if err != nil || other == nil {
		return err
	}
	return a.Forbid(fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist",
		other.Name))
}
