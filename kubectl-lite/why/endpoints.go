package why

import (
	"context"
	"fmt"
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
)

// withoutEndpoints returns a finding about a Service that no ready pod serves, although pods that it selects are ready;
// nil if there is none.
func (s *surroundings) withoutEndpoints(ctx context.Context, service *unstructured.Unstructured,
	ready []*unstructured.Unstructured) []diagnose.Finding {
	if alias, _, _ := unstructured.NestedString(service.Object, "spec", "type"); alias == "ExternalName" {
		return nil
	}
	counts, err := s.readyEndpoints(ctx, service.GetNamespace(), service.GetName())
	if err != nil || counts[service.GetName()] > 0 {
		return nil // a user that may not read EndpointSlices sees no fault
	}
	text := fmt.Sprintf("has no endpoints, although pods that it selects are ready, such as Pod/%s", ready[0].GetName())
	for _, pod := range ready {
		if ip, _, _ := unstructured.NestedString(pod.Object, "status", "podIP"); !reachable(ip) {
			text = fmt.Sprintf("has no endpoints: Pod/%s has the address %s, which other nodes cannot reach",
				pod.GetName(), ip)
			break
		}
	}
	return []diagnose.Finding{{Rank: diagnose.RankStuck, Subject: "Service/" + service.GetName(), Text: text}}
}

// readyEndpoints counts the ready endpoints of Services by name: of one Service, or of all in the namespace if all pods
// were read.
func (s *surroundings) readyEndpoints(ctx context.Context, namespace, service string) (map[string]int, error) {
	if counts, read := s.endpoints[namespace]; read {
		return counts, nil
	}
	selector := labels.Set{discoveryv1.LabelServiceName: service}.String()
	if s.pods != nil {
		selector = discoveryv1.LabelServiceName
	}
	list, err := s.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			if ptr.Deref(e.Conditions.Ready, true) {
				counts[slice.Labels[discoveryv1.LabelServiceName]]++
			}
		}
	}
	if s.pods != nil {
		s.endpoints[namespace] = counts
	}
	return counts, nil
}

// reachable reports whether an EndpointSlice may have an address.
func reachable(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && !ip.IsUnspecified() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() &&
		!ip.IsLinkLocalMulticast()
}
