package routing

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/network/router"
)

// protocols are the numbers of transport protocols in IP.
var protocols = map[corev1.Protocol]uint8{corev1.ProtocolTCP: unix.IPPROTO_TCP, corev1.ProtocolUDP: unix.IPPROTO_UDP,
	corev1.ProtocolSCTP: unix.IPPROTO_SCTP}

// onlyPorts drops the parts of Services that are not about ports, which saves memory.
func onlyPorts(obj any) (any, error) {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return obj, nil
	}
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: s.UID,
		ResourceVersion: s.ResourceVersion}, Spec: corev1.ServiceSpec{Ports: s.Spec.Ports}}, nil
}

// reachNodePorts makes the machine reach the node ports of all Services, if it should.
func (r *routes) reachNodePorts() error {
	if r.ports == nil {
		return nil
	}
	all, err := r.ports.List(labels.Everything())
	if err != nil {
		return err
	}
	return r.Router.ReachNodePorts(nodePortsOf(all))
}

// nodePortsOf returns the node ports of Services, in order.
func nodePortsOf(all []*corev1.Service) (ports []router.NodePort) {
	for _, s := range all {
		for _, p := range s.Spec.Ports {
			if number := protocols[cmp.Or(p.Protocol, corev1.ProtocolTCP)]; number != 0 && p.NodePort > 0 {
				ports = append(ports, router.NodePort{Protocol: number, Port: uint16(p.NodePort)})
			}
		}
	}
	slices.SortFunc(ports, func(a, b router.NodePort) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	return slices.Compact(ports)
}
