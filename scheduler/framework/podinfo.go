package framework

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PodInfo is a pod with the data that scheduling needs, computed once. It is immutable.
type PodInfo struct {
	Pod *corev1.Pod
	// Requests are the resources that the pod takes from a node, one pod slot included.
	Requests Resource
	// Scored is the same with a modest amount for each container that requests no CPU or memory.
	Scored Resource
	// HostPorts are the ports that the pod takes on the addresses of its node.
	HostPorts []HostPort
	// Claims are the PersistentVolumeClaims that the pod uses, as "namespace/name", including the claims of its
	// ephemeral volumes.
	Claims []string
	// Constraints is the weight of all constraints of the pod on its node.
	Constraints int
	// The terms of spec.affinity.podAffinity and podAntiAffinity; none if Constraints exceeds MaxConstraints. Such
	// a pod is not scheduled. If it runs nevertheless, because of its spec.nodeName, it does not keep other pods
	// away.
	RequiredAffinity, RequiredAntiAffinity   []AffinityTerm
	PreferredAffinity, PreferredAntiAffinity []WeightedAffinityTerm
}

// NewPodInfo computes the PodInfo of pod, which must not change afterwards.
func NewPodInfo(pod *corev1.Pod) *PodInfo {
	requests, scored := podRequests(pod)
	p := &PodInfo{Pod: pod, Requests: requests, Scored: scored, HostPorts: hostPorts(pod), Claims: claims(pod)}
	p.Constraints = constraintsOf(&pod.Spec, len(p.HostPorts))
	if a := pod.Spec.Affinity; a != nil && p.Constraints <= MaxConstraints {
		if pa := a.PodAffinity; pa != nil {
			p.RequiredAffinity = newTerms(pod, pa.RequiredDuringSchedulingIgnoredDuringExecution)
			p.PreferredAffinity = newWeightedTerms(pod, pa.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if pa := a.PodAntiAffinity; pa != nil {
			p.RequiredAntiAffinity = newTerms(pod, pa.RequiredDuringSchedulingIgnoredDuringExecution)
			p.PreferredAntiAffinity = newWeightedTerms(pod, pa.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	return p
}

// Priority returns spec.priority, or zero.
func (p *PodInfo) Priority() int32 {
	if p.Pod.Spec.Priority == nil {
		return 0
	}
	return *p.Pod.Spec.Priority
}

// HasAffinity reports whether the pod has inter-pod affinity or anti-affinity, required or preferred.
func (p *PodInfo) HasAffinity() bool {
	return len(p.RequiredAffinity)+len(p.RequiredAntiAffinity)+len(p.PreferredAffinity)+len(p.PreferredAntiAffinity) > 0
}

// claims returns the claims of a pod's volumes. The claim of an ephemeral volume is named after pod and
// volume.
func claims(pod *corev1.Pod) []string {
	var keys []string
	for i := range pod.Spec.Volumes {
		if name := ClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
			keys = append(keys, pod.Namespace+"/"+name)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// ClaimName returns the name of the PersistentVolumeClaim of a volume; "" if it needs none.
func ClaimName(pod *corev1.Pod, volume *corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return pod.Name + "-" + volume.Name
	default:
		return ""
	}
}

// HostPort is a port on the addresses of a node.
type HostPort struct {
	IP       string // "0.0.0.0" for all
	Protocol corev1.Protocol
	Port     int32
}

const anyIP = "0.0.0.0"

// hostPorts returns the host ports of containers and sidecars. Other init containers have ended before the pod
// serves, and Kubernetes does not count their ports.
func hostPorts(pod *corev1.Pod) []HostPort {
	var ports []HostPort
	collect := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			port := HostPort{IP: p.HostIP, Protocol: p.Protocol, Port: p.HostPort}
			if port.IP == "" {
				port.IP = anyIP
			}
			if port.Protocol == "" {
				port.Protocol = corev1.ProtocolTCP
			}
			ports = append(ports, port)
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil &&
			*c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			collect(c)
		}
	}
	for i := range pod.Spec.Containers {
		collect(&pod.Spec.Containers[i])
	}
	return ports
}

// somewhere returns the key that stands for the port on any address.
func (p HostPort) somewhere() HostPort { return HostPort{Protocol: p.Protocol, Port: p.Port} }
