package proxy

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const here = "here" // the name of the proxy's Node

// newService returns a dual-stack Service with port 80 and target port 8080 of TCP and UDP.
func newService(name string, number int, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: name},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIPs: []string{fmt.Sprintf("10.96.%d.%d", number>>8, number&255), fmt.Sprintf("fd96::%x", number)},
			Ports: []corev1.ServicePort{{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80}},
		},
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	for _, c := range change {
		c(s)
	}
	return s
}

// newSlices returns slices with pods as endpoints, one slice for each family.
func newSlices(s *corev1.Service, ends ...discoveryv1.Endpoint) []*discoveryv1.EndpointSlice {
	var all []*discoveryv1.EndpointSlice
	for i, kind := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: fmt.Sprintf("%s-%d", s.Name, i),
				Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}},
			AddressType: kind,
		}
		for _, p := range s.Spec.Ports {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: ptr.To(p.Name),
				Protocol: ptr.To(p.Protocol), Port: ptr.To(int32(8080))})
		}
		for _, e := range ends {
			if len(e.Addresses) > i {
				e.Addresses = e.Addresses[i : i+1]
				slice.Endpoints = append(slice.Endpoints, e)
			}
		}
		all = append(all, slice)
	}
	return all
}

// newEndpoint returns an endpoint on the proxy's Node with an IPv4 and an IPv6 address.
func newEndpoint(v4, v6 string, change ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{v4, v6}, NodeName: ptr.To(here)}
	for _, c := range change {
		c(&e)
	}
	return e
}

func elsewhere(e *discoveryv1.Endpoint) { e.NodeName = ptr.To("elsewhere") }

func terminating(e *discoveryv1.Endpoint) {
	e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(true),
		Terminating: ptr.To(true)}
}
