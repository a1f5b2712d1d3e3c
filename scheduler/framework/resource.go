package framework

import (
	"maps"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// The usage that is assumed for a container without requests when nodes are scored, so that such containers are
// spread too. The values are Kubernetes'.
const (
	defaultMilliCPURequest = 100
	defaultMemoryRequest   = 200 * 1024 * 1024
)

// Resource holds the amount of each resource that is counted on a node.
type Resource struct {
	MilliCPU         int64 // thousandths of a core
	Memory           int64 // bytes
	EphemeralStorage int64 // bytes
	Pods             int64 // slots
	// Scalar contains hugepages and extended resources (example.com/gpu); nil if there are none.
	Scalar map[corev1.ResourceName]int64
}

// NewResource converts a list.
func NewResource(list corev1.ResourceList) Resource {
	var r Resource
	for name, quantity := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = amount(quantity, resource.Milli)
		case corev1.ResourceMemory:
			r.Memory = amount(quantity, 0)
		case corev1.ResourceEphemeralStorage:
			r.EphemeralStorage = amount(quantity, 0)
		case corev1.ResourcePods:
			r.Pods = amount(quantity, 0)
		default:
			if r.Scalar == nil {
				r.Scalar = make(map[corev1.ResourceName]int64)
			}
			r.Scalar[name] = amount(quantity, 0)
		}
	}
	return r
}

// maxAmount is the largest amount that is counted, so that a thousand of them can be added up. No node has so much.
const maxAmount = 1 << 53

// amount returns a quantity in units of 10^scale, rounded up. The API accepts quantities, and sums of them, that do
// not fit an int64 in these units. They count as maxAmount, like all amounts above it: Quantity's own conversion
// returns arbitrary numbers for them, even 0.
func amount(q resource.Quantity, scale resource.Scale) int64 {
	if q.AsApproximateFloat64() >= maxAmount*math.Pow10(int(scale)) {
		return maxAmount
	}
	return q.ScaledValue(scale)
}

// Add adds o times sign, which is 1 or -1.
func (r *Resource) Add(o Resource, sign int64) {
	r.MilliCPU += sign * o.MilliCPU
	r.Memory += sign * o.Memory
	r.EphemeralStorage += sign * o.EphemeralStorage
	r.Pods += sign * o.Pods
	for name, amount := range o.Scalar {
		if r.Scalar == nil {
			r.Scalar = make(map[corev1.ResourceName]int64)
		}
		r.Scalar[name] += sign * amount
	}
}

// Within reports whether no amount is larger than o's.
func (r *Resource) Within(o *Resource) bool {
	for name, amount := range r.Scalar {
		if amount > o.Scalar[name] {
			return false
		}
	}
	return r.MilliCPU <= o.MilliCPU && r.Memory <= o.Memory && r.EphemeralStorage <= o.EphemeralStorage &&
		r.Pods <= o.Pods
}

// Of returns the amount of one resource.
func (r *Resource) Of(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.MilliCPU
	case corev1.ResourceMemory:
		return r.Memory
	case corev1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	case corev1.ResourcePods:
		return r.Pods
	default:
		return r.Scalar[name]
	}
}

// Clone copies the amounts.
func (r Resource) Clone() Resource {
	r.Scalar = maps.Clone(r.Scalar)
	return r
}

var nonMissing = corev1.ResourceList{
	corev1.ResourceCPU:    *resource.NewMilliQuantity(defaultMilliCPURequest, resource.DecimalSI),
	corev1.ResourceMemory: *resource.NewQuantity(defaultMemoryRequest, resource.BinarySI),
}

// podRequests returns the resources that a pod takes from its node: the maximum over time of the needs of its
// containers or init containers, with sidecars in both, plus its overhead. Pod-level requests take precedence. A
// pod that is being resized in place counts with the larger of the old and new requests.
func podRequests(pod *corev1.Pod) (requests, scored Resource) {
	options := resourcehelper.PodResourcesOptions{UseStatusResources: pod.Spec.NodeName != ""}
	requests = NewResource(resourcehelper.PodRequests(pod, options))
	requests.Pods = 1
	options.NonMissingContainerRequests = nonMissing
	scored = NewResource(resourcehelper.PodRequests(pod, options))
	return requests, scored
}
