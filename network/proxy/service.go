package proxy

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// proxyNameLabel marks Services that another proxy serves. It is copied to their EndpointSlices.
	proxyNameLabel = "service.kubernetes.io/service-proxy-name"
	// maxSources limits the loadBalancerSourceRanges of a Service. Further sources are not allowed.
	maxSources = 1000
	// maxAddresses limits the external addresses of a Service, of each kind. Further ones are not served.
	maxAddresses = 1000
)

// family is the address family of a table.
type family uint8

const (
	ipv4 family = iota
	ipv6
	families
)

func (f family) has(a netip.Addr) bool { return a.IsValid() && a.Is6() == (f == ipv6) }

func (f family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

// protocols are the protocols of Services, with the kernel's numbers.
var protocols = map[corev1.Protocol]uint8{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}

const udp = 17

// servicePort is a port of a Service in one family, with all fields that the proxy depends on.
type servicePort struct {
	service    types.NamespacedName
	name       string
	protocol   corev1.Protocol
	created    time.Time // of the Service, to resolve conflicts about an address
	address    netip.Addr
	port       uint16
	nodePort   uint16       // 0 for none
	externals  []netip.Addr // spec.externalIPs
	balancers  []netip.Addr // of the load balancer, if it does not change the destination
	restricted bool         // only sources may reach the balancers' addresses
	sources    []netip.Prefix
	affinity   time.Duration // 0 for none

	internalLocal, externalLocal bool
}

func (p *servicePort) external() bool {
	return p.nodePort != 0 || len(p.externals) > 0 || len(p.balancers) > 0
}

// usesCluster is true for all ports that are reachable from outside: even with policy Local, pods and the node itself
// can reach every endpoint.
func (p *servicePort) usesCluster() bool { return !p.internalLocal || p.external() }

func (p *servicePort) usesLocal() bool { return p.internalLocal || p.externalLocal && p.external() }

// served reports whether this proxy serves a cluster IP of a Service.
func served(s *corev1.Service) bool {
	_, other := s.Labels[proxyNameLabel]
	return !other && s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone &&
		s.Spec.Type != corev1.ServiceTypeExternalName
}

// portsOf returns the ports of a Service in a family, or none if it has no cluster IP there.
func portsOf(s *corev1.Service, f family) []servicePort {
	if !served(s) {
		return nil
	}
	address, ok := clusterIP(s, f)
	if !ok {
		return nil
	}
	base := servicePort{
		service: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, created: s.CreationTimestamp.Time,
		address: address, affinity: affinity(s), externals: bounded(s, parsed(f, s.Spec.ExternalIPs)),
		internalLocal: s.Spec.InternalTrafficPolicy != nil &&
			*s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		externalLocal: s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		base.balancers = bounded(s, parsed(f, ingressIPs(s)))
		base.restricted, base.sources = sourceRanges(s, f)
	}
	var ports []servicePort
	for _, p := range s.Spec.Ports {
		one := base
		one.name, one.protocol = p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)
		if protocols[one.protocol] == 0 || p.Port <= 0 || p.Port >= 1<<16 {
			continue
		}
		one.port = uint16(p.Port)
		if s.Spec.Type != corev1.ServiceTypeClusterIP && p.NodePort > 0 && p.NodePort < 1<<16 {
			one.nodePort = uint16(p.NodePort)
		}
		ports = append(ports, one)
	}
	return ports
}

func clusterIP(s *corev1.Service, f family) (netip.Addr, bool) {
	all := s.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{s.Spec.ClusterIP}
	}
	for _, a := range parsed(f, all) {
		return a, true
	}
	return netip.Addr{}, false
}

// bounded limits a Service's external addresses to the number that is served at all its ports.
func bounded(s *corev1.Service, addresses []netip.Addr) []netip.Addr {
	return addresses[:min(len(addresses), maxElements/max(1, len(s.Spec.Ports)))]
}

// parsed returns the distinct addresses of a family among texts. It leaves out addresses that cannot be a destination
// from elsewhere.
func parsed(f family, texts []string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		if len(all) == maxAddresses {
			break
		}
		a, ok := parseAddress(text)
		if ok && f.has(a) && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// ingressIPs returns the addresses of a load balancer that forwards packets without changing the destination
// (KEP-1860).
func ingressIPs(s *corev1.Service) []string {
	var all []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IP != "" && (i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP) {
			all = append(all, i.IP)
		}
	}
	return all
}

// sourceRanges returns the ranges of a family that may reach the load balancer's addresses. The ranges do not overlap,
// as the kernel's set requires.
func sourceRanges(s *corev1.Service, f family) (restricted bool, ranges []netip.Prefix) {
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		restricted = true
		if p, err := netip.ParsePrefix(text); err == nil && f.has(p.Addr()) && len(ranges) < maxSources {
			ranges = append(ranges, p.Masked())
		}
	}
	return restricted, distinct(ranges)
}

// distinct sorts ranges and removes ranges that are contained in another one.
func distinct(ranges []netip.Prefix) []netip.Prefix {
	slices.SortFunc(ranges, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var outer []netip.Prefix
	for _, r := range ranges {
		if len(outer) == 0 || !outer[len(outer)-1].Contains(r.Addr()) {
			outer = append(outer, r)
		}
	}
	return outer
}

// affinity returns how long a client stays with its endpoint, or 0.
func affinity(s *corev1.Service) time.Duration {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	const longest = 86400 // the API's limit
	return time.Duration(min(max(seconds, 1), longest)) * time.Second
}

// checkedNodePort returns the health check node port of a Service, or 0.
func checkedNodePort(s *corev1.Service) uint16 {
	port := s.Spec.HealthCheckNodePort
	if !served(s) || s.Spec.Type != corev1.ServiceTypeLoadBalancer || port <= 0 || port >= 1<<16 ||
		s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return 0
	}
	return uint16(port)
}
