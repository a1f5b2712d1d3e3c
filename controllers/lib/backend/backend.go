// Package backend finds which pods stand behind a Service, on which ports, and since when:
// the part that EndpointSlices and Endpoints have in common.
package backend

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// Watch wakes the controller, by the key of the Service, when a Service changes or when a pod
// comes to stand behind it, changes there, or leaves it. Changes of pods take effect after the batch period, so that
// those of many pods are one write; with 0 they take effect at once.
func Watch(c *controller.Controller, factory informers.SharedInformerFactory, batch time.Duration) {
	core := factory.Core().V1()
	services := core.Services().Lister()
	controller.Watch(c, core.Services().Informer(), controller.Handler[*corev1.Service]{
		Add:    func(s *corev1.Service) { c.EnqueueObject(s) },
		Update: func(_, s *corev1.Service) { c.EnqueueObject(s) },
		Delete: func(s *corev1.Service) { c.EnqueueObject(s) },
	})
	wake := func(pod *corev1.Pod) {
		for _, key := range servicesOf(services, pod) {
			c.EnqueueBatched(key, batch)
		}
	}
	controller.Watch(c, core.Pods().Informer(), controller.Handler[*corev1.Pod]{
		Add: wake, Delete: wake,
		Update: func(old, pod *corev1.Pod) {
			if !matters(old, pod) {
				return
			}
			wake(pod)
			if !maps.Equal(old.Labels, pod.Labels) {
				wake(old)
			}
		},
	})
}

func servicesOf(lister corelisters.ServiceLister, pod *corev1.Pod) []string {
	var keys []string
	all, err := lister.Services(pod.Namespace).List(labels.Everything())
	if err != nil {
		return nil
	}
	for _, s := range all {
		if len(s.Spec.Selector) > 0 && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
			keys = append(keys, controller.KeyOf(s))
		}
	}
	return keys
}

// matters reports whether an update of a pod can change its endpoint. Most do not: each
// pod's status is written often.
func matters(old, pod *corev1.Pod) bool {
	return old.UID != pod.UID || !maps.Equal(old.Labels, pod.Labels) ||
		(old.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil) ||
		controller.PodReady(old) != controller.PodReady(pod) ||
		controller.PodEnded(old) != controller.PodEnded(pod) ||
		old.Status.PodIP != pod.Status.PodIP || !slices.Equal(old.Status.PodIPs, pod.Status.PodIPs) ||
		old.Spec.NodeName != pod.Spec.NodeName ||
		!equality.Semantic.DeepEqual(old.Spec.Containers, pod.Spec.Containers)
}

// Chosen reports whether the Service's endpoints are ours to keep: they are not where it has no
// selector, for its author keeps them, nor where it is only an alias.
func Chosen(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && len(s.Spec.Selector) > 0
}

// Serves reports whether a pod has, or may yet have, anything to answer with.
func Serves(pod *corev1.Pod) bool {
	return !controller.PodEnded(pod) && (pod.Status.PodIP != "" || len(pod.Status.PodIPs) > 0)
}

// Addresses are those of the pod's addresses, in IPv6 or in IPv4, that endpoints may have. Loopback and others that
// traffic from elsewhere cannot reach are left out: with one of them the API server refuses all endpoints of the slice,
// and the node that says so would keep those of other nodes' pods from the Service.
func Addresses(pod *corev1.Pod, v6 bool) []string {
	ips := pod.Status.PodIPs
	if len(ips) == 0 {
		ips = []corev1.PodIP{{IP: pod.Status.PodIP}}
	}
	var addresses []string
	for _, ip := range ips {
		a, err := netip.ParseAddr(ip.IP)
		if a = a.Unmap(); err == nil && a.Is6() == v6 && reachable(a) {
			addresses = append(addresses, ip.IP)
		}
	}
	return addresses
}

func reachable(a netip.Addr) bool {
	return a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() &&
		!a.IsLinkLocalMulticast()
}

// Hostname is the name by which the Service's DNS domain has the pod, if it asks for one.
func Hostname(s *corev1.Service, pod *corev1.Pod) string {
	if pod.Spec.Subdomain == s.Name {
		return pod.Spec.Hostname
	}
	return ""
}

// Headless reports whether the Service has no address of its own.
func Headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

// Port finds the number of the pod's port that a Service's port leads to.
func Port(pod *corev1.Pod, port *corev1.ServicePort) (int32, error) {
	if port.TargetPort.Type == intstr.Int {
		if port.TargetPort.IntVal == 0 {
			return port.Port, nil
		}
		return port.TargetPort.IntVal, nil
	}
	protocol := port.Protocol
	for _, c := range running(&pod.Spec) {
		for _, p := range c.Ports {
			if p.Name == port.TargetPort.StrVal && (p.Protocol == protocol || p.Protocol == "" &&
				protocol == corev1.ProtocolTCP) {
				return p.ContainerPort, nil
			}
		}
	}
	return 0, fmt.Errorf("pod %s has no %s port %q", controller.KeyOf(pod), protocol, port.TargetPort.StrVal)
}

// running are the containers that run as long as the pod does: sidecars are among them.
func running(spec *corev1.PodSpec) []corev1.Container {
	all := slices.Clone(spec.Containers)
	for _, c := range spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}
