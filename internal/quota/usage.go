package quota

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	podresources "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
)

// Usage returns an object's usage of all resources that a quota can name. now decides whether a terminating pod's
// grace period is over.
func Usage(gr schema.GroupResource, obj metav1.Object, now time.Time) corev1.ResourceList {
	used := corev1.ResourceList{CountOf(gr): one()}
	switch o := obj.(type) {
	case *corev1.Pod:
		if alive(o, now) {
			podUsage(o, used)
		}
	case *corev1.Service:
		serviceUsage(o, used)
	case *corev1.PersistentVolumeClaim:
		claimUsage(o, used)
	default:
		if name := corev1.ResourceName(gr.Resource); Counts(gr, name) {
			used[name] = one()
		}
	}
	return used
}

// alive reports whether a pod still uses resources: it has not ended, nor has its deletion overrun on an
// unresponsive node.
func alive(pod *corev1.Pod, now time.Time) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return false
	}
	if pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil {
		const longest = math.MaxInt64 / int64(time.Second) // the longest Duration in seconds
		return !now.After(
			pod.DeletionTimestamp.Add(time.Duration(min(*pod.DeletionGracePeriodSeconds, longest)) * time.Second))
	}
	return true
}

func isPodResource(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage:
		return true
	}
	text := string(name)
	return strings.HasPrefix(text, corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(text, corev1.ResourceRequestsHugePagesPrefix) ||
		strings.HasPrefix(text, corev1.DefaultResourceRequestsPrefix) && !isNative(name)
}

// isNative reports whether a resource is Kubernetes' own, not an extended one.
func isNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

func podUsage(pod *corev1.Pod, used corev1.ResourceList) {
	options := podresources.PodResourcesOptions{UseStatusResources: true}
	computeUsage(podresources.PodRequests(pod, options), podresources.PodLimits(pod, options), used)
	used[corev1.ResourcePods] = one()
}

// computeUsage adds requests under their own names and with the prefix "requests.", and limits with "limits.".
func computeUsage(requests, limits, used corev1.ResourceList) {
	for name, quantity := range requests {
		prefixed := corev1.ResourceName(corev1.DefaultResourceRequestsPrefix + string(name))
		switch {
		case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage,
			strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			used[name], used[prefixed] = quantity, quantity
		case !isNative(name):
			used[prefixed] = quantity
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory,
		corev1.ResourceEphemeralStorage} {
		if quantity, ok := limits[name]; ok {
			used["limits."+name] = quantity
		}
	}
}

// mustAsk lists the resources that every container must request or limit if a quota names them.
var mustAsk = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
}

// Unsaid returns an error if a pod's containers lack a request or limit that the quota's resources require.
func Unsaid(pod *corev1.Pod, hard corev1.ResourceList) error {
	missing := map[corev1.ResourceName][]string{}
	whole := corev1.ResourceList{}
	if r := pod.Spec.Resources; r != nil {
		computeUsage(r.Requests, r.Limits, whole)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range containers {
			said := maps.Clone(whole)
			computeUsage(c.Resources.Requests, c.Resources.Limits, said)
			for _, name := range mustAsk {
				_, required := hard[name]
				if _, ok := said[name]; required && !ok {
					missing[name] = append(missing[name], c.Name)
				}
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		slices.Sort(missing[name])
		parts = append(parts, fmt.Sprintf("%s for: %s", name, strings.Join(slices.Compact(missing[name]), ",")))
	}
	return fmt.Errorf("must specify %s", strings.Join(parts, "; "))
}

func serviceUsage(service *corev1.Service, used corev1.ResourceList) {
	used[corev1.ResourceServices] = one()
	ports := func(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }
	used[corev1.ResourceServicesNodePorts], used[corev1.ResourceServicesLoadBalancers] = ports(0), ports(0)
	switch service.Spec.Type {
	case corev1.ServiceTypeNodePort:
		used[corev1.ResourceServicesNodePorts] = ports(len(service.Spec.Ports))
	case corev1.ServiceTypeLoadBalancer:
		used[corev1.ResourceServicesLoadBalancers] = one()
		if ptr.Deref(service.Spec.AllocateLoadBalancerNodePorts, true) {
			used[corev1.ResourceServicesNodePorts] = ports(len(service.Spec.Ports))
			break
		}
		chosen := 0
		for _, p := range service.Spec.Ports {
			if p.NodePort != 0 {
				chosen++
			}
		}
		used[corev1.ResourceServicesNodePorts] = ports(chosen)
	}
}

// classSuffix follows a storage class's name in the resources that count its claims alone.
const classSuffix = ".storageclass.storage.k8s.io/"

func isClaimResource(name corev1.ResourceName) bool {
	return name == corev1.ResourcePersistentVolumeClaims || name == corev1.ResourceRequestsStorage ||
		strings.HasSuffix(string(name), classSuffix+string(corev1.ResourcePersistentVolumeClaims)) ||
		strings.HasSuffix(string(name), classSuffix+string(corev1.ResourceRequestsStorage))
}

func claimUsage(claim *corev1.PersistentVolumeClaim, used corev1.ResourceList) {
	class := claim.Annotations[corev1.BetaStorageClassAnnotation]
	if class == "" {
		class = ptr.Deref(claim.Spec.StorageClassName, "")
	}
	ofClass := func(name corev1.ResourceName) corev1.ResourceName {
		return corev1.ResourceName(class + classSuffix + string(name))
	}
	used[corev1.ResourcePersistentVolumeClaims] = one()
	size, requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if allocated, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok && allocated.Cmp(size) > 0 {
		size = allocated // an earlier, larger expansion is still in progress
	}
	if requested {
		used[corev1.ResourceRequestsStorage] = size
	}
	if class == "" {
		return
	}
	used[ofClass(corev1.ResourcePersistentVolumeClaims)] = one()
	if requested {
		used[ofClass(corev1.ResourceRequestsStorage)] = size
	}
}
