package api

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/api/naming"
)

func services() *Resource {
	return &Resource{
		Version: "v1", Kind: "Service", Plural: "services", Namespaced: true,
		ShortNames:     []string{"svc"},
		Categories:     []string{"all"},
		New:            func() Object { return &corev1.Service{} },
		NewList:        func() runtime.Object { return &corev1.ServiceList{} },
		CreateOnUpdate: true,

		Default:        with(defaultService),
		PrepareCreate:  with(normalizeClusterIPs),
		PrepareUpdate:  with2(patchClusterIPs),
		ValidateName:   naming.NameIsDNSLabel,
		Validate:       checked(validateService),
		ValidateUpdate: checked2(validateServiceUpdate),
		Status: statusOf(
			func(s *corev1.Service) *corev1.ServiceStatus { return &s.Status },
			(*corev1.ServiceStatus).DeepCopy,
		).withMetadata(AllMetadata).checkedBy(checked2(validateServiceStatus)),
		Parts:  []Subresource{proxyTo("ServiceProxyOptions")},
		Fields: []string{"spec.clusterIP", "spec.type"},

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Type", "string", corev1.ServiceSpec{}.SwaggerDoc()["type"]),
			column("Cluster-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["clusterIP"]),
			column("External-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["externalIPs"]),
			column("Port(s)", "string", corev1.ServiceSpec{}.SwaggerDoc()["ports"]),
			ageColumn,
			wide("Selector", "string", corev1.ServiceSpec{}.SwaggerDoc()["selector"]),
		},
		Cells: row(func(s *corev1.Service) []any {
			ip := s.Spec.ClusterIP
			if len(s.Spec.ClusterIPs) > 0 {
				ip = s.Spec.ClusterIPs[0]
			}
			return []any{
				s.Name, string(s.Spec.Type), orNone(ip), externalIPCell(s), portsCell(s.Spec.Ports),
				age(s.CreationTimestamp), labelsCell(s.Spec.Selector),
			}
		}),
	}
}

// external says whether a service is reached from outside of the cluster, so that its
// externalTrafficPolicy means something.
func external(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer || s.Spec.Type == corev1.ServiceTypeNodePort ||
		(s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0)
}

func defaultService(s *corev1.Service) {
	spec := &s.Spec
	setDefault(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	if spec.SessionAffinity == corev1.ServiceAffinityNone {
		spec.SessionAffinityConfig = nil
	} else if c := spec.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		timeout := corev1.DefaultClientIPServiceAffinitySeconds
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
	setDefault(&spec.Type, corev1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		setDefault(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if external(s) {
		setDefault(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer || spec.Type == corev1.ServiceTypeClusterIP {
		setDefaultPtr(&spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		setDefaultPtr(&spec.AllocateLoadBalancerNodePorts, true)
		for i := range s.Status.LoadBalancer.Ingress {
			if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" {
				setDefaultPtr(&in.IPMode, corev1.LoadBalancerIPModeVIP)
			}
		}
	}
}

// normalizeClusterIPs lets a client name the one cluster IP alone.
func normalizeClusterIPs(s *corev1.Service) {
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
}

// patchClusterIPs keeps clusterIP and clusterIPs in step where a client changed only one of
// them, and carries over what was allocated where a client left it out: clients that
// know nothing of allocation replace services with what their user wrote.
func patchClusterIPs(s, old *corev1.Service) {
	sameIP := s.Spec.ClusterIP == old.Spec.ClusterIP
	sameIPs := slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs)
	switch {
	case len(old.Spec.ClusterIPs) == 0 || (s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0):
		normalizeClusterIPs(s)
	case !sameIP && sameIPs && s.Spec.ClusterIP != "":
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	case !sameIP && sameIPs:
		s.Spec.ClusterIPs = nil
	case sameIP && !sameIPs && len(s.Spec.ClusterIPs) == 0:
		s.Spec.ClusterIP = ""
	}
	dropBalancer(s, old)
	if s.Spec.Type == corev1.ServiceTypeExternalName || old.Spec.Type == corev1.ServiceTypeExternalName {
		dropAllocations(s, old)
		return
	}
	if s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = old.Spec.ClusterIP, slices.Clone(old.Spec.ClusterIPs)
	}
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = slices.Clone(old.Spec.IPFamilies)
	}
	if s.Spec.IPFamilyPolicy == nil {
		s.Spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
	}
	keepNodePorts(s, old)
	if external(old) && !external(s) && s.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy {
		s.Spec.ExternalTrafficPolicy = ""
	}
	if needsHealthCheck(old) && !needsHealthCheck(s) && s.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		s.Spec.HealthCheckNodePort = 0
	}
	if s.Spec.HealthCheckNodePort == 0 && needsHealthCheck(s) && needsHealthCheck(old) {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

// dropBalancer clears what a service merely repeats that is no longer of type LoadBalancer.
func dropBalancer(s, old *corev1.Service) {
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer || old.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	if equality.Semantic.DeepEqual(s.Spec.AllocateLoadBalancerNodePorts, old.Spec.AllocateLoadBalancerNodePorts) {
		s.Spec.AllocateLoadBalancerNodePorts = nil
	}
	if equality.Semantic.DeepEqual(s.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
		s.Spec.LoadBalancerClass = nil
	}
}

// dropAllocations clears what a service loses that becomes an ExternalName, unless the
// client changed it: then validation has its say.
func dropAllocations(s, old *corev1.Service) {
	if s.Spec.Type != corev1.ServiceTypeExternalName || old.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if s.Spec.ClusterIP == old.Spec.ClusterIP && slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
	}
	s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = nil, nil
	s.Spec.InternalTrafficPolicy, s.Spec.ExternalTrafficPolicy = nil, ""
}

// keepNodePorts carries a port's node port over where the client left it out, and lets
// go of those that a service no longer of such a type merely repeats.
func keepNodePorts(s, old *corev1.Service) {
	had, has := hasNodePorts(old), hasNodePorts(s)
	if !had {
		return
	}
	nodePorts := make(map[string]int32, len(old.Spec.Ports))
	for _, p := range slices.Backward(old.Spec.Ports) {
		nodePorts[fmt.Sprint(p.Port, p.Protocol)] = p.NodePort
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		was, ok := nodePorts[fmt.Sprint(p.Port, p.Protocol)]
		if !ok {
			continue
		}
		switch {
		case has && p.NodePort == 0:
			p.NodePort = was
		case !has && p.NodePort == was:
			p.NodePort = 0
		}
	}
}

func hasNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort ||
		(s.Spec.Type == corev1.ServiceTypeLoadBalancer && (s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts))
}

func needsHealthCheck(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func externalIPCell(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return joinOrNone(s.Spec.ExternalIPs)
	case corev1.ServiceTypeLoadBalancer:
		addresses := append(ingressAddresses(s.Status.LoadBalancer.Ingress), s.Spec.ExternalIPs...)
		if len(addresses) == 0 {
			return "<pending>"
		}
		return strings.Join(addresses, ",")
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	}
	return unknown
}

func ingressAddresses(ingress []corev1.LoadBalancerIngress) []string {
	var list []string
	for _, in := range ingress {
		address := in.IP
		if address == "" {
			address = in.Hostname
		}
		if address != "" {
			list = append(list, address)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func portsCell(ports []corev1.ServicePort) string {
	list := make([]string, len(ports))
	for i, p := range ports {
		list[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			list[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return joinOrNone(list)
}
