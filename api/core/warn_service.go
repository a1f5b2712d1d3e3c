package core

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// preferCloseIsDeprecated is the warning about PreferClose, which PreferSameZone replaces.
var preferCloseIsDeprecated = fmt.Sprintf("spec.trafficDistribution: %q is deprecated; use %q",
	corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone)

// warnService returns the warnings about fields that have no effect, are deprecated or are in an unusual form. They are
// in the words and the order of Kubernetes (pkg/api/service/warnings.go).
func warnService(s, _ *corev1.Service) []string {
	spec, path := &s.Spec, field.NewPath("spec")
	headless := spec.Type == corev1.ServiceTypeClusterIP && spec.ClusterIP == corev1.ClusterIPNone
	external := spec.Type == corev1.ServiceTypeExternalName
	var warnings []string
	warnIf := func(condition bool, text string) {
		if condition {
			warnings = append(warnings, text)
		}
	}
	_, hints := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	warnIf(hints, fmt.Sprintf("annotation %s is deprecated, please use %s instead",
		corev1.DeprecatedAnnotationTopologyAwareHints, corev1.AnnotationTopologyMode))
	if spec.ClusterIP != "" && spec.ClusterIP != corev1.ClusterIPNone {
		warnings = append(warnings, warnAddresses(path.Child("clusterIPs"), spec.ClusterIPs)...)
	}
	warnIf(headless && spec.LoadBalancerIP != "", "spec.loadBalancerIP is ignored for headless services")
	warnIf(headless && len(spec.ExternalIPs) > 0, "spec.externalIPs is ignored for headless services")
	warnIf(headless && spec.SessionAffinity != corev1.ServiceAffinityNone,
		"spec.SessionAffinity is ignored for headless services")
	warnings = append(warnings, warnAddresses(path.Child("externalIPs"), spec.ExternalIPs)...)
	warnIf(!headless && !external && len(spec.ExternalIPs) > 0,
		"spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	// Any text is valid here, and GetWarningsForIP logs an error for a text that is no address.
	if validation.IsValidIPForLegacyField(path, spec.LoadBalancerIP, false, nil) == nil {
		warnings = append(warnings, validation.GetWarningsForIP(path.Child("loadBalancerIP"), spec.LoadBalancerIP)...)
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		warnings = append(warnings, validation.GetWarningsForCIDR(path.Child("loadBalancerSourceRanges").Index(i),
			strings.TrimSpace(cidr))...)
	}
	warnIf(external && len(spec.ExternalIPs) > 0, `spec.externalIPs is ignored when spec.type is "ExternalName"`)
	warnIf(!external && spec.ExternalName != "", `spec.externalName is ignored when spec.type is not "ExternalName"`)
	warnIf(spec.TrafficDistribution != nil &&
		*spec.TrafficDistribution == corev1.ServiceTrafficDistributionPreferClose, preferCloseIsDeprecated)
	return warnings
}

// warnAddresses returns the warnings about addresses in an unusual form.
func warnAddresses(path *field.Path, addresses []string) []string {
	var warnings []string
	for i, address := range addresses {
		warnings = append(warnings, validation.GetWarningsForIP(path.Index(i), address)...)
	}
	return warnings
}
