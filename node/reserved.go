package node

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

// AddReserved adds amounts of cpu, memory and ephemeral-storage to the reserved resources, in the form of
// --kube-reserved and --system-reserved.
func AddReserved(reserved corev1.ResourceList, amounts map[string]string) error {
	for name, text := range amounts {
		switch resource := corev1.ResourceName(name); resource {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			q, err := limits.ParseQuantity(text)
			if err != nil || q.Sign() < 0 {
				return fmt.Errorf("%s=%s is no quantity of 0 or more", name, text)
			}
			q.Add(reserved[resource])
			reserved[resource] = q
		default:
			return fmt.Errorf("%q is not one of cpu, memory and ephemeral-storage", name)
		}
	}
	return nil
}

// checkReserved returns an error if all of a resource is reserved.
func (o *Options) checkReserved() error {
	for name, reserved := range o.Reserved {
		has, ok := o.Capacity[name]
		if ok && (reserved.Sign() < 0 || reserved.Cmp(has) >= 0) {
			return fmt.Errorf("--kube-reserved and --system-reserved: %s of %s is not less than the capacity of %s",
				reserved.String(), name, has.String())
		}
	}
	return nil
}

// allocatable returns the part of a Node's capacity that pods may use.
func (o *Options) allocatable() corev1.ResourceList {
	all := maps.Clone(o.Capacity)
	for name, reserved := range o.Reserved {
		if left, ok := all[name]; ok {
			left = left.DeepCopy()
			left.Sub(reserved)
			all[name] = left
		}
	}
	return all
}
