package core

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func services() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "Service", Plural: "services", Namespaced: true,
			ShortNames: []string{"svc"},
			Categories: []string{"all"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &corev1.Service{} },
			NewList: func() runtime.Object { return &corev1.ServiceList{} },
			Fields:  []string{"spec.clusterIP", "spec.type"},
		},
		Strategy: api.Strategy{
			ReturnDeleted:  true,
			CreateOnUpdate: true,
			Default:        api.Typed(defaultService),
			PrepareCreate:  api.Typed(normalizeClusterIPs),
			PrepareUpdate:  api.Typed2(patchClusterIPs),
			ValidateName:   naming.NameIsDNSLabel,
			Validate:       api.Check(validateService),
			ValidateUpdate: api.CheckUpdate(validateServiceUpdate),
			Warnings:       api.Warn(warnService),
			Status: api.StatusOf(
				func(s *corev1.Service) *corev1.ServiceStatus { return &s.Status },
				(*corev1.ServiceStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).CheckedBy(api.CheckUpdate(validateServiceStatus)),
			Subresources: []api.Subresource{proxyTo("ServiceProxyOptions")},
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Type", "string", corev1.ServiceSpec{}.SwaggerDoc()["type"]),
				table.Column("Cluster-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["clusterIP"]),
				table.Column("External-IP", "string", corev1.ServiceSpec{}.SwaggerDoc()["externalIPs"]),
				table.Column("Port(s)", "string", corev1.ServiceSpec{}.SwaggerDoc()["ports"]),
				table.Age,
				table.Wide("Selector", "string", corev1.ServiceSpec{}.SwaggerDoc()["selector"]),
			},
			Cells: api.Row(func(s *corev1.Service) []any {
				ip := s.Spec.ClusterIP
				if len(s.Spec.ClusterIPs) > 0 {
					ip = s.Spec.ClusterIPs[0]
				}
				return []any{
					s.Name, string(s.Spec.Type), table.OrNone(ip), externalIPCell(s), portsCell(s.Spec.Ports),
					table.AgeOf(s.CreationTimestamp), table.LabelsOf(s.Spec.Selector),
				}
			}),
		},
	}
}

// external reports whether a service is reachable from outside of the cluster, so that externalTrafficPolicy applies.
func external(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer || s.Spec.Type == corev1.ServiceTypeNodePort ||
		(s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0)
}

func defaultService(s *corev1.Service) {
	spec := &s.Spec
	defaults.Set(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	if spec.SessionAffinity == corev1.ServiceAffinityNone {
		spec.SessionAffinityConfig = nil
	} else if c := spec.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		timeout := corev1.DefaultClientIPServiceAffinitySeconds
		spec.SessionAffinityConfig =
			&corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
	defaults.Set(&spec.Type, corev1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		defaults.Set(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if external(s) {
		defaults.Set(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer ||
		spec.Type == corev1.ServiceTypeClusterIP {
		defaults.SetPtr(&spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		defaults.SetPtr(&spec.AllocateLoadBalancerNodePorts, true)
		for i := range s.Status.LoadBalancer.Ingress {
			if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" {
				defaults.SetPtr(&in.IPMode, corev1.LoadBalancerIPModeVIP)
			}
		}
	}
}

// normalizeClusterIPs copies clusterIP to clusterIPs if a client has set only clusterIP.
func normalizeClusterIPs(s *corev1.Service) {
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
}

// patchClusterIPs keeps clusterIP and clusterIPs consistent if a client changed only one of them. It restores an
// allocated address that the client left out: clients that do not know about the allocation replace services with
// their user's manifest.
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
	if needsClusterIP(s) && needsClusterIP(old) {
		if s.Spec.ClusterIP == "" && len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = old.Spec.ClusterIP, slices.Clone(old.Spec.ClusterIPs)
		}
		if len(s.Spec.IPFamilies) == 0 {
			s.Spec.IPFamilies = slices.Clone(old.Spec.IPFamilies)
		}
		if s.Spec.IPFamilyPolicy == nil {
			s.Spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
		}
	}
	if hasNodePorts(s) && hasNodePorts(old) {
		keepNodePorts(s, old)
	}
	if s.Spec.HealthCheckNodePort == 0 && needsHealthCheck(s) && needsHealthCheck(old) {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
	dropUnused(s, old)
}

// dropUnused clears fields that a service's new type does not use, if the client left them unchanged. Validation
// handles fields that the client changed as well.
func dropUnused(s, old *corev1.Service) {
	is, was := &s.Spec, &old.Spec
	if needsClusterIP(old) && !needsClusterIP(s) {
		if is.ClusterIP == was.ClusterIP && slices.Equal(is.ClusterIPs, was.ClusterIPs) {
			is.ClusterIP, is.ClusterIPs = "", nil
		}
		if slices.Equal(is.IPFamilies, was.IPFamilies) {
			is.IPFamilies = nil
		}
		if ptr.Equal(is.IPFamilyPolicy, was.IPFamilyPolicy) {
			is.IPFamilyPolicy = nil
		}
	}
	if mayHaveNodePorts(old) && !mayHaveNodePorts(s) && repeatsNodePorts(s, old) {
		for i := range is.Ports {
			is.Ports[i].NodePort = 0
		}
	}
	if needsHealthCheck(old) && !needsHealthCheck(s) && is.HealthCheckNodePort == was.HealthCheckNodePort {
		is.HealthCheckNodePort = 0
	}
	if external(old) && !external(s) && is.ExternalTrafficPolicy == was.ExternalTrafficPolicy {
		is.ExternalTrafficPolicy = ""
	}
	if was.Type != corev1.ServiceTypeLoadBalancer || is.Type == corev1.ServiceTypeLoadBalancer {
		return
	}
	if ptr.Equal(is.AllocateLoadBalancerNodePorts, was.AllocateLoadBalancerNodePorts) {
		is.AllocateLoadBalancerNodePorts = nil
	}
	if ptr.Equal(is.LoadBalancerClass, was.LoadBalancerClass) {
		is.LoadBalancerClass = nil
	}
	s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
}

// keepNodePorts restores the node port of a port with the same name if the client left it out, unless the client
// assigns it to another port.
func keepNodePorts(s, old *corev1.Service) {
	taken, named := make(map[int32]bool, len(s.Spec.Ports)), make(map[string]int32, len(old.Spec.Ports))
	for _, p := range s.Spec.Ports {
		taken[p.NodePort] = p.NodePort != 0
	}
	for _, p := range old.Spec.Ports {
		named[p.Name] = p.NodePort
	}
	for i := range s.Spec.Ports {
		if p := &s.Spec.Ports[i]; p.NodePort == 0 && !taken[named[p.Name]] {
			p.NodePort = named[p.Name]
			taken[p.NodePort] = p.NodePort != 0
		}
	}
}

// repeatsNodePorts reports whether the old service had all the node ports of the new one.
func repeatsNodePorts(s, old *corev1.Service) bool {
	had := make(map[int32]bool, len(old.Spec.Ports))
	for _, p := range old.Spec.Ports {
		had[p.NodePort] = true
	}
	return !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.NodePort != 0 && !had[p.NodePort]
	})
}

func needsClusterIP(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }

func mayHaveNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

func hasNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort ||
		(s.Spec.Type == corev1.ServiceTypeLoadBalancer && (s.Spec.AllocateLoadBalancerNodePorts == nil ||
			*s.Spec.AllocateLoadBalancerNodePorts))
}

func needsHealthCheck(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer &&
		s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func externalIPCell(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return table.JoinOrNone(s.Spec.ExternalIPs)
	case corev1.ServiceTypeLoadBalancer:
		addresses := append(ingressAddresses(s.Status.LoadBalancer.Ingress), s.Spec.ExternalIPs...)
		if len(addresses) == 0 {
			return "<pending>"
		}
		return strings.Join(addresses, ",")
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	}
	return table.Unknown
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
	return table.JoinOrNone(list)
}
