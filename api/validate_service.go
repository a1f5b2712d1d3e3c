package api

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateService(s *corev1.Service) field.ErrorList {
	path, spec := field.NewPath("spec"), &s.Spec
	errs := validateServiceType(s, path)
	errs = append(errs, validateServicePorts(s, path.Child("ports"))...)
	errs = append(errs, metav1validation.ValidateLabels(spec.Selector, path.Child("selector"))...)
	errs = append(errs, validateAffinityOf(spec, path)...)
	errs = append(errs, validateClusterIPs(s, path)...)
	for i, ip := range spec.ExternalIPs {
		at := path.Child("externalIPs").Index(i)
		if ipErrs := validIP(at, ip); len(ipErrs) > 0 {
			errs = append(errs, ipErrs...)
		} else {
			errs = append(errs, usableIP(at, ip)...)
		}
	}
	errs = append(errs, validateTrafficPolicies(s, path)...)
	return append(errs, validateLoadBalancer(s, path)...)
}

func validateServiceType(s *corev1.Service, path *field.Path) field.ErrorList {
	spec := &s.Spec
	errs := requiredOneOf(path.Child("type"), spec.Type,
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)
	headless := spec.ClusterIP == corev1.ClusterIPNone
	switch spec.Type {
	case corev1.ServiceTypeNodePort:
		if headless {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), spec.ClusterIP, "may not be set to 'None' for NodePort services"))
		}
	case corev1.ServiceTypeLoadBalancer:
		if headless {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), spec.ClusterIP, "may not be set to 'None' for LoadBalancer services"))
		}
	case corev1.ServiceTypeExternalName:
		if len(spec.ClusterIPs) > 0 || spec.ClusterIP != "" {
			errs = append(errs, field.Forbidden(path.Child("clusterIPs"), "may not be set for ExternalName services"))
		}
		if len(spec.IPFamilies) > 0 {
			errs = append(errs, field.Forbidden(path.Child("ipFamilies"), "may not be set for ExternalName services"))
		}
		if spec.IPFamilyPolicy != nil {
			errs = append(errs, field.Forbidden(path.Child("ipFamilyPolicy"), "may not be set for ExternalName services"))
		}
		// A trailing dot makes the name absolute.
		if name := strings.TrimSuffix(spec.ExternalName, "."); name == "" {
			errs = append(errs, field.Required(path.Child("externalName"), ""))
		} else {
			errs = append(errs, dnsSubdomain(path.Child("externalName"), name)...)
		}
	}
	return errs
}

func validateServicePorts(s *corev1.Service, path *field.Path) field.ErrorList {
	spec := &s.Spec
	headless := spec.ClusterIP == corev1.ClusterIPNone
	if len(spec.Ports) == 0 {
		if headless || spec.Type == corev1.ServiceTypeExternalName {
			return nil
		}
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	type claim struct {
		protocol corev1.Protocol
		port     int32
	}
	names, ports, nodePorts := map[string]bool{}, map[claim]bool{}, map[claim]bool{}
	for i := range spec.Ports {
		p, at := &spec.Ports[i], path.Index(i)
		switch {
		case p.Name == "":
			if len(spec.Ports) > 1 {
				errs = append(errs, field.Required(at.Child("name"), ""))
			}
		case names[p.Name]:
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		default:
			errs = append(errs, dnsLabel(at.Child("name"), p.Name)...)
		}
		names[p.Name] = true
		errs = append(errs, portNumber(at.Child("port"), p.Port)...)
		errs = append(errs, requiredOneOf(at.Child("protocol"), p.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)...)
		errs = append(errs, portNumberOrName(at.Child("targetPort"), p.TargetPort)...)
		if p.AppProtocol != nil {
			errs = append(errs, qualifiedName(at.Child("appProtocol"), *p.AppProtocol)...)
		}
		if ports[claim{p.Protocol, p.Port}] {
			errs = append(errs, field.Duplicate(at, corev1.ServicePort{Protocol: p.Protocol, Port: p.Port}))
		}
		ports[claim{p.Protocol, p.Port}] = true
		errs = append(errs, validateNodePort(s, p, nodePorts[claim{p.Protocol, p.NodePort}], at)...)
		nodePorts[claim{p.Protocol, p.NodePort}] = true
	}
	return errs
}

func validateNodePort(s *corev1.Service, p *corev1.ServicePort, taken bool, at *field.Path) field.ErrorList {
	if p.NodePort == 0 {
		return nil
	}
	errs := portNumber(at.Child("nodePort"), p.NodePort)
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName:
		errs = append(errs, field.Forbidden(at.Child("nodePort"), "may not be used when `type` is '"+string(s.Spec.Type)+"'"))
	default:
		if taken {
			errs = append(errs, field.Duplicate(at.Child("nodePort"), p.NodePort))
		}
	}
	return errs
}

func validateAffinityOf(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	errs := requiredOneOf(path.Child("sessionAffinity"), spec.SessionAffinity, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	at := path.Child("sessionAffinityConfig")
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityClientIP:
		c := spec.SessionAffinityConfig
		if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			return append(errs, field.Required(at.Child("clientIP", "timeoutSeconds"), fmt.Sprintf("when session affinity type is %s", corev1.ServiceAffinityClientIP)))
		}
		const day = 86400
		if seconds := *c.ClientIP.TimeoutSeconds; seconds <= 0 || seconds > day {
			errs = append(errs, field.Invalid(at.Child("clientIP", "timeoutSeconds"), seconds, fmt.Sprintf("must be greater than 0 and less than %d", day)))
		}
	case corev1.ServiceAffinityNone:
		if spec.SessionAffinityConfig != nil {
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("must not be set when session affinity is %s", corev1.ServiceAffinityNone)))
		}
	}
	return errs
}

// validateClusterIPs checks the form and the agreement of the IP fields. Whether an address
// is in the range and free is for the allocation to say.
func validateClusterIPs(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	spec, at := &s.Spec, path.Child("clusterIPs")
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		errs = append(errs, field.Required(at, ""))
	}
	if len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] != spec.ClusterIP {
		errs = append(errs, field.Invalid(at, spec.ClusterIPs, "first value must match `clusterIP`"))
	}
	if len(spec.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(at, spec.ClusterIPs, "may only hold up to 2 values"))
	}
	families := make(map[bool]bool, 2)
	for i, ip := range spec.ClusterIPs {
		if ip == corev1.ClusterIPNone {
			if len(spec.ClusterIPs) > 1 {
				errs = append(errs, field.Invalid(at, spec.ClusterIPs, "'None' must be the first and only value"))
			}
			continue
		}
		ipErrs := validIP(at.Index(i), ip)
		errs = append(errs, ipErrs...)
		v6 := strings.Contains(ip, ":")
		if len(ipErrs) == 0 && families[v6] {
			errs = append(errs, field.Invalid(at, spec.ClusterIPs, "may specify no more than one IP for each IP family"))
		}
		families[v6] = true
		if i < len(spec.IPFamilies) && len(ipErrs) == 0 && (spec.IPFamilies[i] == corev1.IPv6Protocol) != v6 {
			errs = append(errs, field.Invalid(at.Index(i), ip, fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%d]`", spec.IPFamilies[i], i)))
		}
	}
	for i, family := range spec.IPFamilies {
		at := path.Child("ipFamilies").Index(i)
		errs = append(errs, oneOf(at, family, corev1.IPv4Protocol, corev1.IPv6Protocol)...)
		if slices.Contains(spec.IPFamilies[:i], family) {
			errs = append(errs, field.Duplicate(at, family))
		}
	}
	if p := spec.IPFamilyPolicy; p != nil {
		errs = append(errs, oneOf(path.Child("ipFamilyPolicy"), *p,
			corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack)...)
	}
	return errs
}

// usableIP refuses addresses that no traffic from elsewhere can reach.
func usableIP(path *field.Path, value string) field.ErrorList {
	ip, err := netip.ParseAddr(value)
	if err != nil {
		return nil
	}
	var errs field.ErrorList
	if ip.IsUnspecified() {
		errs = append(errs, field.Invalid(path, value, fmt.Sprintf("may not be unspecified (%v)", value)))
	}
	if ip.IsLoopback() {
		errs = append(errs, field.Invalid(path, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)"))
	}
	if ip.IsLinkLocalUnicast() {
		errs = append(errs, field.Invalid(path, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"))
	}
	if ip.IsLinkLocalMulticast() {
		errs = append(errs, field.Invalid(path, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"))
	}
	return errs
}

func validateTrafficPolicies(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	spec, at := &s.Spec, path.Child("externalTrafficPolicy")
	switch {
	case !external(s) && spec.ExternalTrafficPolicy != "":
		errs = append(errs, field.Invalid(at, spec.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
	case external(s):
		errs = append(errs, requiredOneOf(at, spec.ExternalTrafficPolicy,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	}
	health := path.Child("healthCheckNodePort")
	switch {
	case spec.HealthCheckNodePort == 0:
	case needsHealthCheck(s):
		errs = append(errs, portNumber(health, spec.HealthCheckNodePort)...)
	default:
		errs = append(errs, field.Invalid(health, spec.HealthCheckNodePort, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	}
	if p := spec.InternalTrafficPolicy; p != nil {
		errs = append(errs, oneOf(path.Child("internalTrafficPolicy"), *p,
			corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	}
	if d := spec.TrafficDistribution; d != nil {
		errs = append(errs, oneOf(path.Child("trafficDistribution"), *d, corev1.ServiceTrafficDistributionPreferClose,
			corev1.ServiceTrafficDistributionPreferSameNode, corev1.ServiceTrafficDistributionPreferSameZone)...)
	}
	return errs
}

func validateLoadBalancer(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	spec, balanced := &s.Spec, s.Spec.Type == corev1.ServiceTypeLoadBalancer
	ranges := path.Child("loadBalancerSourceRanges")
	if len(spec.LoadBalancerSourceRanges) > 0 && !balanced {
		errs = append(errs, field.Forbidden(ranges, "may only be used when `type` is 'LoadBalancer'"))
	} else {
		for i, cidr := range spec.LoadBalancerSourceRanges {
			errs = append(errs, utilvalidation.IsValidCIDRForLegacyField(ranges.Index(i), strings.TrimSpace(cidr), true, nil)...)
		}
	}
	class := path.Child("loadBalancerClass")
	switch {
	case spec.LoadBalancerClass == nil:
	case !balanced:
		errs = append(errs, field.Forbidden(class, "may only be used when `type` is 'LoadBalancer'"))
	default:
		errs = append(errs, qualifiedName(class, *spec.LoadBalancerClass)...)
	}
	allocate := path.Child("allocateLoadBalancerNodePorts")
	if balanced && spec.AllocateLoadBalancerNodePorts == nil {
		errs = append(errs, field.Required(allocate, ""))
	} else if !balanced && spec.AllocateLoadBalancerNodePorts != nil {
		errs = append(errs, field.Forbidden(allocate, "may only be used when `type` is 'LoadBalancer'"))
	}
	return errs
}

// validateServiceUpdate fixes the first cluster IP and its family while the service has one,
// and the class of a load balancer.
func validateServiceUpdate(s, old *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	if old.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.Type != corev1.ServiceTypeExternalName {
		headless, was := s.Spec.ClusterIP == corev1.ClusterIPNone, old.Spec.ClusterIP == corev1.ClusterIPNone
		if !headless || !was {
			errs = append(errs, fixedFirst(s.Spec.ClusterIPs, old.Spec.ClusterIPs, "clusterIPs", "clusterIP")...)
		}
		if !headless || !was || len(s.Spec.Selector) > 0 || len(old.Spec.Selector) > 0 {
			errs = append(errs, fixedFirst(s.Spec.IPFamilies, old.Spec.IPFamilies, "ipFamilies", "ipFamily")...)
		}
	}
	if old.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		errs = append(errs, sameClass(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass, field.NewPath("spec", "loadBalancerClass"))...)
	}
	return errs
}

// fixedFirst allows only that the second of two values comes or goes. Whether it may go is
// for the allocation to say.
func fixedFirst[T ~string](list, old []T, name, one string) field.ErrorList {
	path := field.NewPath("spec", name)
	var errs field.ErrorList
	if len(list) == 0 && len(old) > 0 {
		return field.ErrorList{field.Invalid(path.Index(0), list, "primary "+one+" can not be unset")}
	}
	for i := range min(len(list), len(old)) {
		if list[i] != old[i] {
			errs = append(errs, field.Invalid(path.Index(i), list, "may not change once set"))
		}
	}
	return errs
}

func sameClass(class, old *string, path *field.Path) field.ErrorList {
	if (class == nil) == (old == nil) && (class == nil || *class == *old) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, class, "may not change once set")}
}

func validateServiceStatus(s, _ *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status", "loadBalancer", "ingress")
	if len(s.Status.LoadBalancer.Ingress) > 0 && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return field.ErrorList{field.Forbidden(path, "may only be used when `spec.type` is \"LoadBalancer\"")}
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		at := path.Index(i)
		if in.IP != "" {
			errs = append(errs, validIP(at.Child("ip"), in.IP)...)
		} else if in.IPMode != nil {
			errs = append(errs, field.Forbidden(at.Child("ipMode"), "may not be specified when `ip` is not set"))
		}
		if in.Hostname != "" {
			errs = append(errs, dnsSubdomain(at.Child("hostname"), in.Hostname)...)
		}
	}
	return errs
}
