package core

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func validateService(s *corev1.Service) field.ErrorList {
	path, spec := field.NewPath("spec"), &s.Spec
	errs := validateTopologyAnnotations(s)
	errs = append(errs, validateServiceType(s, path)...)
	errs = append(errs, validateServicePorts(s, path.Child("ports"))...)
	errs = append(errs, validate.Labels(spec.Selector, path.Child("selector"))...)
	errs = append(errs, validateAffinityOf(spec, path)...)
	if spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, validateClusterIPs(s, path)...)
	}
	for i, ip := range spec.ExternalIPs {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("externalIPs").Index(i)
		if ipErrs := validate.IP(idxPath, ip); len(ipErrs) > 0 {
			errs = append(errs, ipErrs...)
		} else {
			errs = append(errs, validate.UsableIP(idxPath, ip)...)
		}
	}
	errs = append(errs, validate.RequiredOneOf(path.Child("type"), spec.Type,
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer,
		corev1.ServiceTypeNodePort)...)
	errs = append(errs, validateUniquePorts(s, path.Child("ports"))...)
	errs = append(errs, validateLoadBalancer(s, path)...)
	return append(errs, validateTrafficPolicies(s, path)...)
}

// validateTopologyAnnotations requires the two annotations for the same setting to agree.
func validateTopologyAnnotations(s *corev1.Service) field.ErrorList {
	hints, old := s.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]
	mode, new := s.Annotations[corev1.AnnotationTopologyMode]
	if !old || !new || hints == mode {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode),
		mode,
		fmt.Sprintf("must match annotations[%s] when both are specified",
			corev1.DeprecatedAnnotationTopologyAwareHints))}
}

func validateServiceType(s *corev1.Service, path *field.Path) field.ErrorList {
	spec := &s.Spec
	var errs field.ErrorList
	headless := spec.ClusterIP == corev1.ClusterIPNone
	switch spec.Type {
	case corev1.ServiceTypeNodePort:
		if headless {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), spec.ClusterIP,
				"may not be set to 'None' for NodePort services"))
		}
	case corev1.ServiceTypeLoadBalancer:
		if headless {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), spec.ClusterIP,
				"may not be set to 'None' for LoadBalancer services"))
		}
	case corev1.ServiceTypeExternalName:
		if len(spec.ClusterIPs) > 0 || spec.ClusterIP != "" {
			errs = append(errs, field.Forbidden(path.Child("clusterIPs"), "may not be set for ExternalName services"))
		}
		if len(spec.IPFamilies) > 0 {
			errs = append(errs, field.Forbidden(path.Child("ipFamilies"), "may not be set for ExternalName services"))
		}
		if spec.IPFamilyPolicy != nil {
			errs = append(errs, field.Forbidden(path.Child("ipFamilyPolicy"),
				"may not be set for ExternalName services"))
		}
		// A trailing dot makes the name absolute.
		if name := strings.TrimSuffix(spec.ExternalName, "."); name == "" {
			errs = append(errs, field.Required(path.Child("externalName"), ""))
		} else {
			errs = append(errs, validate.DnsSubdomain(path.Child("externalName"), name)...)
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
	names := map[string]bool{}
	for i := range spec.Ports {
		if field.Enough(errs) {
			break
		}
		p, idxPath := &spec.Ports[i], path.Index(i)
		if p.Name == "" {
			if len(spec.Ports) > 1 {
				errs = append(errs, field.Required(idxPath.Child("name"), ""))
			}
		} else {
			errs = append(errs, validate.DnsLabel(idxPath.Child("name"), p.Name)...)
			if names[p.Name] {
				errs = append(errs, field.Duplicate(idxPath.Child("name"), p.Name))
			}
			names[p.Name] = true
		}
		errs = append(errs, validate.PortNumber(idxPath.Child("port"), p.Port)...)
		errs = append(errs, validate.RequiredOneOf(idxPath.Child("protocol"), p.Protocol, corev1.ProtocolSCTP,
			corev1.ProtocolTCP, corev1.ProtocolUDP)...)
		errs = append(errs, validate.PortNumberOrName(idxPath.Child("targetPort"), p.TargetPort)...)
		if p.AppProtocol != nil {
			errs = append(errs, validate.Complaints(idxPath.Child("appProtocol"), *p.AppProtocol,
				naming.IsQualifiedName(*p.AppProtocol))...)
		}
	}
	return errs
}

// validateUniquePorts rejects repeated ports and repeated node ports.
func validateUniquePorts(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	type claim struct {
		protocol corev1.Protocol
		port     int32
	}
	if s.Spec.Type == corev1.ServiceTypeClusterIP {
		for i := range s.Spec.Ports {
			if field.Enough(errs) {
				break
			}
			if s.Spec.Ports[i].NodePort != 0 {
				errs = append(errs, field.Forbidden(path.Index(i).Child("nodePort"),
					"may not be used when `type` is 'ClusterIP'"))
			}
		}
	}
	ports, nodePorts := map[claim]bool{}, map[claim]bool{}
	for i := range s.Spec.Ports {
		if field.Enough(errs) {
			break
		}
		p := &s.Spec.Ports[i]
		key := claim{p.Protocol, p.NodePort}
		if p.NodePort != 0 && nodePorts[key] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("nodePort"), p.NodePort))
		}
		nodePorts[key] = true
	}
	for i := range s.Spec.Ports {
		if field.Enough(errs) {
			break
		}
		p := &s.Spec.Ports[i]
		key := claim{p.Protocol, p.Port}
		if ports[key] {
			errs = append(errs, field.Duplicate(path.Index(i), corev1.ServicePort{Protocol: p.Protocol, Port: p.Port}))
		}
		ports[key] = true
	}
	return errs
}

func validateAffinityOf(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	errs := validate.RequiredOneOf(path.Child("sessionAffinity"), spec.SessionAffinity, corev1.ServiceAffinityClientIP,
		corev1.ServiceAffinityNone)
	fldPath := path.Child("sessionAffinityConfig")
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityClientIP:
		c, why := spec.SessionAffinityConfig, fmt.Sprintf("when session affinity type is %s",
			corev1.ServiceAffinityClientIP)
		timeout := fldPath.Child("clientIP", "timeoutSeconds")
		switch {
		case c == nil:
			return append(errs, field.Required(fldPath, why))
		case c.ClientIP == nil:
			return append(errs, field.Required(fldPath.Child("clientIP"), why))
		case c.ClientIP.TimeoutSeconds == nil:
			return append(errs, field.Required(timeout, why))
		}
		const day = 86400
		if seconds := c.ClientIP.TimeoutSeconds; *seconds <= 0 || *seconds > day {
			errs = append(errs,
				field.Invalid(timeout, seconds, fmt.Sprintf("must be greater than 0 and less than %d", day)))
		}
	case corev1.ServiceAffinityNone:
		if spec.SessionAffinityConfig != nil {
			errs = append(errs,
				field.Forbidden(fldPath, fmt.Sprintf("must not be set when session affinity is %s",
					corev1.ServiceAffinityNone)))
		}
	}
	return errs
}

// validateClusterIPs checks the form and the consistency of the IP fields. The allocator checks that an address is in
// the range and free.
func validateClusterIPs(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	spec, fldPath := &s.Spec, path.Child("clusterIPs")
	switch {
	case spec.ClusterIP == "" && len(spec.ClusterIPs) > 0:
		errs = append(errs, field.Invalid(fldPath, spec.ClusterIPs, "must be empty when `clusterIP` is not specified"))
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		errs = append(errs, field.Required(fldPath, ""))
	case spec.ClusterIP != "" && spec.ClusterIPs[0] != spec.ClusterIP:
		errs = append(errs, field.Invalid(fldPath, spec.ClusterIPs, "first value must match `clusterIP`"))
	}
	for i, family := range spec.IPFamilies {
		if field.Enough(errs) {
			break
		}
		fldPath := path.Child("ipFamilies").Index(i)
		errs = append(errs, validate.OneOf(fldPath, family, corev1.IPv4Protocol, corev1.IPv6Protocol)...)
		if slices.Contains(spec.IPFamilies[:i], family) {
			errs = append(errs, field.Duplicate(fldPath, family))
		}
	}
	if p := spec.IPFamilyPolicy; p != nil {
		errs = append(errs, validate.OneOf(path.Child("ipFamilyPolicy"), *p,
			corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack,
			corev1.IPFamilyPolicySingleStack)...)
	}
	wrong := false
	for i, ip := range spec.ClusterIPs {
		if field.Enough(errs) {
			break
		}
		if i == 0 && ip == corev1.ClusterIPNone {
			if len(spec.ClusterIPs) > 1 {
				wrong = true
				errs = append(errs, field.Invalid(fldPath, spec.ClusterIPs, "'None' must be the first and only value"))
			}
			continue
		}
		ipErrs := validate.IP(fldPath.Index(i), ip)
		wrong = wrong || len(ipErrs) > 0
		errs = append(errs, ipErrs...)
	}
	if len(spec.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(fldPath, spec.ClusterIPs, "may only hold up to 2 values"))
	}
	if wrong || spec.ClusterIP == corev1.ClusterIPNone {
		return errs
	}
	return append(errs, validateFamilies(spec, fldPath)...)
}

// validateFamilies requires one address for each family, in the order of ipFamilies.
func validateFamilies(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	isV6 := func(ip string) bool { return strings.Contains(ip, ":") }
	if n := len(spec.ClusterIPs); n > 1 && !(slices.ContainsFunc(spec.ClusterIPs, isV6) &&
		slices.ContainsFunc(spec.ClusterIPs, func(ip string) bool {
			return !isV6(ip)
		})) {
		errs = append(errs, field.Invalid(path, spec.ClusterIPs, "may specify no more than one IP for each IP family"))
	}
	for i, ip := range spec.ClusterIPs[:min(len(spec.ClusterIPs), len(spec.IPFamilies))] {
		if field.Enough(errs) {
			break
		}
		if family := spec.IPFamilies[i]; (family == corev1.IPv4Protocol && isV6(ip)) ||
			(family == corev1.IPv6Protocol && !isV6(ip)) {
			errs = append(errs, field.Invalid(path.Index(i), ip, fmt.Sprintf("expected an %s value as indicated by "+
				"`ipFamilies[%d]`", family, i)))
		}
	}
	return errs
}

func validateTrafficPolicies(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	spec, fldPath := &s.Spec, path.Child("externalTrafficPolicy")
	switch {
	case !external(s) && spec.ExternalTrafficPolicy != "":
		errs = append(errs, field.Invalid(fldPath, spec.ExternalTrafficPolicy,
			"may only be set for externally-accessible services"))
	case external(s):
		errs = append(errs, validate.RequiredOneOf(fldPath, spec.ExternalTrafficPolicy,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	}
	health := path.Child("healthCheckNodePort")
	switch {
	case spec.HealthCheckNodePort == 0:
	case needsHealthCheck(s):
		errs = append(errs, validate.PortNumber(health, spec.HealthCheckNodePort)...)
	default:
		errs = append(errs, field.Invalid(health, spec.HealthCheckNodePort,
			"may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	}
	switch {
	case spec.InternalTrafficPolicy != nil:
	case spec.Type == corev1.ServiceTypeClusterIP, spec.Type == corev1.ServiceTypeNodePort,
		spec.Type == corev1.ServiceTypeLoadBalancer:
		errs = append(errs, field.Required(path.Child("internalTrafficPolicy"), ""))
	}
	if p := spec.InternalTrafficPolicy; p != nil {
		errs = append(errs, validate.OneOf(path.Child("internalTrafficPolicy"), *p,
			corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	}
	if d := spec.TrafficDistribution; d != nil {
		errs = append(errs, validate.OneOf(path.Child("trafficDistribution"), *d,
			corev1.ServiceTrafficDistributionPreferClose,
			corev1.ServiceTrafficDistributionPreferSameNode, corev1.ServiceTrafficDistributionPreferSameZone)...)
	}
	return errs
}

func validateLoadBalancer(s *corev1.Service, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	spec, balanced := &s.Spec, s.Spec.Type == corev1.ServiceTypeLoadBalancer
	const onlyBalanced = "may only be used when `type` is 'LoadBalancer'"
	ranges, cidrs := path.Child("LoadBalancerSourceRanges"), spec.LoadBalancerSourceRanges
	annotation, annotated := s.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
	if len(cidrs) == 0 && annotated {
		ranges = field.NewPath("metadata", "annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
		if annotation = strings.TrimSpace(annotation); annotation != "" {
			cidrs = strings.Split(annotation, ",")
		}
	}
	if !balanced && (len(cidrs) > 0 || annotated) {
		errs = append(errs, field.Forbidden(ranges, onlyBalanced))
	}
	for i, cidr := range cidrs {
		if field.Enough(errs) {
			break
		}
		fldPath := ranges
		if len(spec.LoadBalancerSourceRanges) > 0 {
			fldPath = ranges.Index(i)
		}
		errs = append(errs, validate.CIDR(fldPath, strings.TrimSpace(cidr))...)
	}
	class := path.Child("loadBalancerClass")
	switch {
	case spec.LoadBalancerClass == nil:
	case !balanced:
		errs = append(errs, field.Forbidden(class, onlyBalanced))
	default:
		errs = append(errs, validate.Complaints(class, *spec.LoadBalancerClass,
			naming.IsQualifiedName(*spec.LoadBalancerClass))...)
	}
	allocate := path.Child("allocateLoadBalancerNodePorts")
	if balanced && spec.AllocateLoadBalancerNodePorts == nil {
		errs = append(errs, field.Required(field.NewPath("allocateLoadBalancerNodePorts"), ""))
	} else if !balanced && spec.AllocateLoadBalancerNodePorts != nil {
		errs = append(errs, field.Forbidden(allocate, onlyBalanced))
	}
	return errs
}

// validateServiceUpdate rejects changes of the first cluster IP and its family, of a load balancer's class, and of the
// port of its health check, as long as the service has them.
func validateServiceUpdate(s, old *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	if old.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.Type != corev1.ServiceTypeExternalName {
		headless, was := s.Spec.ClusterIP == corev1.ClusterIPNone, old.Spec.ClusterIP == corev1.ClusterIPNone
		if !headless || !was {
			errs = append(errs, fixedFirst(s.Spec.ClusterIPs, old.Spec.ClusterIPs, "clusterIPs", "clusterIP")...)
		}
		if !headless && !was {
			errs = append(errs, fixedFirst(s.Spec.IPFamilies, old.Spec.IPFamilies, "ipFamilies", "ipFamily")...)
		}
	}
	if old.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		errs = append(errs, sameClass(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass,
			field.NewPath("spec", "loadBalancerClass"))...)
	}
	if needsHealthCheck(s) && needsHealthCheck(old) && s.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "healthCheckNodePort"), "field is immutable"))
	}
	return errs
}

// fixedFirst allows only the second of two values to be added or removed. The allocator checks whether it may be
// removed.
func fixedFirst[T ~string](list, old []T, name, one string) field.ErrorList {
	path := field.NewPath("spec", name)
	if len(list) == 0 && len(old) > 0 {
		return field.ErrorList{field.Invalid(path.Index(0), list, "primary "+one+" can not be unset")}
	}
	var errs field.ErrorList
	for i := range min(len(list), len(old)) {
		if field.Enough(errs) {
			break
		}
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
	path := field.NewPath("status", "loadBalancer", "ingress")
	if len(s.Status.LoadBalancer.Ingress) > 0 && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return field.ErrorList{field.Forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'")}
	}
	var errs field.ErrorList
	for i, in := range s.Status.LoadBalancer.Ingress {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Index(i)
		if in.IP != "" {
			errs = append(errs, validate.IP(idxPath.Child("ip"), in.IP)...)
		}
		switch mode := idxPath.Child("ipMode"); {
		case in.IPMode == nil && in.IP != "":
			errs = append(errs, field.Required(mode, "must be specified when `ip` is set"))
		case in.IPMode != nil && in.IP == "":
			errs = append(errs, field.Forbidden(mode, "may not be specified when `ip` is not set"))
		case in.IPMode != nil:
			errs = append(errs, validate.OneOf(mode, *in.IPMode, corev1.LoadBalancerIPModeProxy,
				corev1.LoadBalancerIPModeVIP)...)
		}
		errs = append(errs, validate.Hostname(in.Hostname, idxPath.Child("hostname"))...)
	}
	return errs
}
