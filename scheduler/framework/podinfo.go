package framework

import (
	corev1 "k8s.io/api/core/v1"
)

// PodInfo is a pod with what scheduling needs to know of it, worked out once. It is immutable.
type PodInfo struct {
	Pod *corev1.Pod
	// Requests is what the pod takes from a node, one pod slot included.
	Requests Resource
	// Scored is the same with a modest amount put in where a container requests no CPU or memory.
	Scored Resource
	// HostPorts are the ports that the pod takes on the addresses of its node.
	HostPorts []HostPort
}

// NewPodInfo works out what scheduling needs to know of pod, which must not change afterwards.
func NewPodInfo(pod *corev1.Pod) *PodInfo {
	requests, scored := podRequests(pod)
	return &PodInfo{Pod: pod, Requests: requests, Scored: scored, HostPorts: hostPorts(pod)}
}

// Priority is spec.priority, or zero.
func (p *PodInfo) Priority() int32 {
	if p.Pod.Spec.Priority == nil {
		return 0
	}
	return *p.Pod.Spec.Priority
}

// HostPort is a port on the addresses of a node.
type HostPort struct {
	IP       string // "0.0.0.0" for all
	Protocol corev1.Protocol
	Port     int32
}

const anyIP = "0.0.0.0"

// hostPorts collects the host ports of containers and sidecars. Other init containers have
// ended before the pod serves, and Kubernetes does not count theirs.
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
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			collect(c)
		}
	}
	for i := range pod.Spec.Containers {
		collect(&pod.Spec.Containers[i])
	}
	return ports
}

// Conflicts reports whether both ports cannot be taken at once.
func (p HostPort) Conflicts(o HostPort) bool {
	return p.Port == o.Port && p.Protocol == o.Protocol && (p.IP == o.IP || p.IP == anyIP || o.IP == anyIP)
}
