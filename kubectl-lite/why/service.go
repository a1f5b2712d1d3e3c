package why

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
)

// behind returns the pods that a Service selects, and their faults. A Service is ready if it has an endpoint that is
// ready. Ready pods are no proof, because a controller writes the endpoints.
func (s *surroundings) behind(ctx context.Context, obj *unstructured.Unstructured) (
	found []diagnose.Finding, pods []*unstructured.Unstructured, err error) {
	service := &corev1.Service{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, service); err != nil {
		return nil, nil, err
	}
	add := func(rank diagnose.Rank, format string, args ...any) {
		found = append(found, diagnose.Finding{Rank: rank, Subject: "Service/" + service.Name,
			Text: fmt.Sprintf(format, args...)})
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, nil, nil
	}
	if len(service.Spec.Selector) == 0 {
		if s.readyEndpoints(ctx, service) == 0 {
			add(diagnose.RankMissing, "has no selector and no ready endpoints: nothing has written an EndpointSlice "+
				"for it")
		}
		return found, nil, nil
	}
	pods, err = s.selected(ctx, service.Namespace, labels.SelectorFromSet(service.Spec.Selector))
	if err != nil {
		return nil, nil, err
	}
	ready := 0
	for _, pod := range pods {
		if s.pods == nil { // otherwise the caller inspects all pods
			found = append(found, diagnose.Inspect(pod, s.now)...)
		}
		if diagnose.IsTrue(pod, string(corev1.PodReady)) && pod.GetDeletionTimestamp() == nil {
			ready++
		}
	}
	switch {
	case len(pods) == 0:
		add(diagnose.RankMissing, "selects no pods: none here has the labels %s",
			labels.Set(service.Spec.Selector).String())
	case ready == 0 && !service.Spec.PublishNotReadyAddresses:
		add(diagnose.RankSummary, "has no pod that is ready, of %d that it selects", len(pods))
	case ready > 0:
		if name, port := lostPort(service, pods); name != "" {
			add(diagnose.RankMissing, "sends the port %d to the container port %q, which none of its pods has", port,
				name)
		} else if s.readyEndpoints(ctx, service) > 0 {
			break
		} else if pod, ip := unreachablePod(pods); pod != "" {
			add(diagnose.RankStuck, "has no endpoints: Pod/%s has the address %s, which other nodes cannot reach", pod,
				ip)
		} else {
			add(diagnose.RankStuck, "has no ready endpoints, although %d of its pods are ready: is the controller "+
				"endpointslice running?", ready)
		}
	}
	return found, pods, nil
}

// readyEndpoints counts the ready endpoints of a Service. It returns 1 if the user may not list EndpointSlices.
func (s *surroundings) readyEndpoints(ctx context.Context, service *corev1.Service) int {
	count := 0
	for _, obj := range s.slices[service.Namespace+"/"+service.Name] {
		slice := discoveryv1.EndpointSlice{}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &slice) == nil {
			count += countReady(&slice)
		}
	}
	if count > 0 {
		return count
	}
	list, err := s.client.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelServiceName: service.Name}.String()})
	if err != nil {
		return 1
	}
	for i := range list.Items {
		count += countReady(&list.Items[i])
	}
	return count
}

func countReady(slice *discoveryv1.EndpointSlice) (count int) {
	for _, e := range slice.Endpoints {
		if ptr.Deref(e.Conditions.Ready, true) { // no value counts as ready
			count++
		}
	}
	return count
}

// unreachablePod returns the first ready pod with an address that an EndpointSlice may not have, and the address.
func unreachablePod(pods []*unstructured.Unstructured) (name, address string) {
	for _, pod := range pods {
		address, _, _ := unstructured.NestedString(pod.Object, "status", "podIP")
		if diagnose.IsTrue(pod, string(corev1.PodReady)) && address != "" && !reachable(address) {
			return pod.GetName(), address
		}
	}
	return "", ""
}

// reachable reports whether an EndpointSlice may have an address.
func reachable(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && !ip.IsUnspecified() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() &&
		!ip.IsLinkLocalMulticast()
}

// lostPort returns the first port of a Service with a named target that no container of the pods has.
func lostPort(service *corev1.Service, pods []*unstructured.Unstructured) (target string, port int32) {
	names := map[string]bool{}
	for _, obj := range pods {
		pod := &corev1.Pod{}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, pod) != nil {
			continue
		}
		for _, c := range append(pod.Spec.Containers, pod.Spec.InitContainers...) { // a sidecar may have the port
			for _, p := range c.Ports {
				names[p.Name] = true
			}
		}
	}
	for _, p := range service.Spec.Ports {
		if p.TargetPort.Type == intstr.String && !names[p.TargetPort.StrVal] {
			return p.TargetPort.StrVal, p.Port
		}
	}
	return "", 0
}
