// Package backend finds the pods behind a Service, their addresses and ports, and the time of the last change:
// the part that the controllers of EndpointSlices and Endpoints share.
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

// Watch enqueues a Service's key when the Service changes, and when a pod starts to match its selector,
// changes, or stops matching. Changes of pods are collected for the batch period, so that changes of many pods
// cause one write; with 0 they are handled at once.
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

// matters reports whether an update of a pod can change its endpoint. Most updates cannot: they only write the
// status.
func matters(old, pod *corev1.Pod) bool {
	return old.UID != pod.UID || !maps.Equal(old.Labels, pod.Labels) ||
		(old.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil) ||
		controller.PodReady(old) != controller.PodReady(pod) ||
		controller.PodEnded(old) != controller.PodEnded(pod) ||
		old.Status.PodIP != pod.Status.PodIP || !slices.Equal(old.Status.PodIPs, pod.Status.PodIPs) ||
		old.Spec.NodeName != pod.Spec.NodeName ||
		!equality.Semantic.DeepEqual(old.Spec.Containers, pod.Spec.Containers)
}

// Chosen reports whether a controller keeps the Service's endpoints. It does not if the Service has no
// selector, because its author keeps them, or if the Service is an alias (type ExternalName).
func Chosen(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && len(s.Spec.Selector) > 0
}

// Serves reports whether a pod has an address and has not ended.
func Serves(pod *corev1.Pod) bool {
	return !controller.PodEnded(pod) && (pod.Status.PodIP != "" || len(pod.Status.PodIPs) > 0)
}

// Addresses returns the pod's IPv6 or IPv4 addresses that are valid in endpoints. It leaves out loopback and
// other addresses that other nodes cannot reach. The API server rejects a slice with such an address as a
// whole, so a node that reports one would remove the pods of other nodes from the Service.
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

// Unreachable returns a sentence about the first of the pods' addresses that Addresses leaves out, for an Event; "" if
// there is none.
func Unreachable(pods []*corev1.Pod) string {
	for _, pod := range pods {
		if !Serves(pod) {
			continue
		}
		ips := pod.Status.PodIPs
		if len(ips) == 0 {
			ips = []corev1.PodIP{{IP: pod.Status.PodIP}}
		}
		for _, ip := range ips {
			if a, err := netip.ParseAddr(ip.IP); err != nil || !reachable(a.Unmap()) {
				return fmt.Sprintf("pod %s has the address %q, which other nodes cannot reach: it is left out",
					controller.KeyOf(pod), ip.IP)
			}
		}
	}
	return ""
}

func reachable(a netip.Addr) bool {
	return a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() &&
		!a.IsLinkLocalMulticast()
}

// Hostname returns the pod's name in the Service's DNS domain, if the pod has one.
func Hostname(s *corev1.Service, pod *corev1.Pod) string {
	if pod.Spec.Subdomain == s.Name {
		return pod.Spec.Hostname
	}
	return ""
}

// Headless reports whether the Service has no cluster IP.
func Headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

// Port returns the number of the pod's port that a Service's port targets.
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

// running returns the containers that run as long as the pod does, sidecars included.
func running(spec *corev1.PodSpec) []corev1.Container {
	all := slices.Clone(spec.Containers)
	for _, c := range spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}
