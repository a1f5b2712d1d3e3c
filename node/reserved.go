package node

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/internal/limits"
)

// AddReserved adds amounts of cpu, memory and ephemeral-storage, as --kube-reserved and --system-reserved have them, to
// what is reserved.
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

// checkReserved refuses to reserve all that a Node has.
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

// allocatable is what pods may have of a Node.
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
