package endpointslice

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	utilnet "k8s.io/utils/net"

	"github.com/coxswain-dev/coxswain/controllers/lib/backend"
	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// addressTypes returns the address types of the Service's IP families.
func addressTypes(svc *corev1.Service) []discoveryv1.AddressType {
	if len(svc.Spec.IPFamilies) == 0 {
		if utilnet.IsIPv6String(svc.Spec.ClusterIP) {
			return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv6}
		}
		return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4}
	}
	types := make([]discoveryv1.AddressType, len(svc.Spec.IPFamilies))
	for i, family := range svc.Spec.IPFamilies {
		types[i] = discoveryv1.AddressType(family)
	}
	return types
}

// endpointOf returns the endpoint of a pod; ok is false if the pod has no address of the type. node may be nil.
func endpointOf(svc *corev1.Service, pod *corev1.Pod, node *corev1.Node, t discoveryv1.AddressType) (
	e discoveryv1.Endpoint, ok bool) {
	e.Addresses = backend.Addresses(pod, t == discoveryv1.AddressTypeIPv6)
	if len(e.Addresses) == 0 {
		return e, false
	}
	serving, terminating := controller.PodReady(pod), pod.DeletionTimestamp != nil
	// With publishNotReadyAddresses every pod is listed as ready, even while it terminates.
	e.Conditions = discoveryv1.EndpointConditions{
		Ready:       new(svc.Spec.PublishNotReadyAddresses || serving && !terminating),
		Serving:     &serving,
		Terminating: &terminating,
	}
	e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	if pod.Spec.NodeName != "" {
		e.NodeName = &pod.Spec.NodeName
	}
	if node != nil && node.Labels[corev1.LabelTopologyZone] != "" {
		e.Zone = new(node.Labels[corev1.LabelTopologyZone])
	}
	if name := backend.Hostname(svc, pod); name != "" {
		e.Hostname = &name
	}
	e.Hints = hintsOf(svc, &e)
	return e, true
}

// hintsOf returns the zones and Nodes that should prefer the endpoint, by the Service's
// spec.trafficDistribution.
func hintsOf(svc *corev1.Service, e *discoveryv1.Endpoint) *discoveryv1.EndpointHints {
	if svc.Spec.TrafficDistribution == nil || !*e.Conditions.Ready || topologyAware(svc) {
		return nil
	}
	hints := &discoveryv1.EndpointHints{}
	switch *svc.Spec.TrafficDistribution {
	case corev1.ServiceTrafficDistributionPreferSameNode:
		if e.NodeName != nil {
			hints.ForNodes = []discoveryv1.ForNode{{Name: *e.NodeName}}
		}
	case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone:
	default:
		return nil
	}
	if e.Zone != nil {
		hints.ForZones = []discoveryv1.ForZone{{Name: *e.Zone}}
	}
	if len(hints.ForNodes) == 0 && len(hints.ForZones) == 0 {
		return nil
	}
	return hints
}

// portsOf resolves the Service's ports to numbers of the pod's ports. A named port that the pod does not have
// is left out.
func portsOf(svc *corev1.Service, pod *corev1.Pod) []discoveryv1.EndpointPort {
	ports := []discoveryv1.EndpointPort{}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		number, err := backend.Port(pod, p)
		if err != nil {
			continue
		}
		ports = append(ports, discoveryv1.EndpointPort{
			Name: &p.Name, Port: &number, Protocol: &p.Protocol, AppProtocol: p.AppProtocol,
		})
	}
	return ports
}
