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
	// proxyNameLabel is set on Services, and copied to their slices, that another proxy serves.
	proxyNameLabel = "service.kubernetes.io/service-proxy-name"
	// maxSources bounds the loadBalancerSourceRanges of a Service. Sources beyond it are not let in.
	maxSources = 1000
	// maxAddresses bounds the external addresses of a Service, of each kind. Those beyond it are not served.
	maxAddresses = 1000
)

// family is that of a table's addresses.
type family uint8

const (
	ipv4 family = iota
	ipv6
	families
)

func (f family) has(a netip.Addr) bool { return a.IsValid() && a.Is6() == (f == ipv6) }

func (f family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

// protocols are those of Services, by the kernel's numbers.
var protocols = map[corev1.Protocol]uint8{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17, corev1.ProtocolSCTP: 132}

const udp = 17

// servicePort is a port of a Service in one family, as far as the proxy goes by it.
type servicePort struct {
	service    types.NamespacedName
	name       string
	protocol   corev1.Protocol
	created    time.Time // of the Service: for an address that two claim
	address    netip.Addr
	port       uint16
	nodePort   uint16       // 0 for none
	externals  []netip.Addr // spec.externalIPs
	balancers  []netip.Addr // of the load balancer, where it leaves packets their destination
	restricted bool         // the balancers' addresses are for sources only
	sources    []netip.Prefix
	affinity   time.Duration // 0 for none

	internalLocal, externalLocal bool
}

func (p *servicePort) external() bool {
	return p.nodePort != 0 || len(p.externals) > 0 || len(p.balancers) > 0
}

// usesCluster is true of all that are reached from outside: even where the policy is Local, pods and the node itself
// reach every endpoint.
func (p *servicePort) usesCluster() bool { return !p.internalLocal || p.external() }

func (p *servicePort) usesLocal() bool { return p.internalLocal || p.externalLocal && p.external() }

// served reports whether a Service has a cluster IP that this proxy serves.
func served(s *corev1.Service) bool {
	_, other := s.Labels[proxyNameLabel]
	return !other && s.Spec.ClusterIP != "" && s.Spec.ClusterIP != corev1.ClusterIPNone &&
		s.Spec.Type != corev1.ServiceTypeExternalName
}

// portsOf are the ports of a Service in a family; none if it has no cluster IP there.
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

// bounded returns as many of a Service's external addresses as are served at all its ports.
func bounded(s *corev1.Service, addresses []netip.Addr) []netip.Addr {
	return addresses[:min(len(addresses), maxElements/max(1, len(s.Spec.Ports)))]
}

// parsed are the addresses of a family among texts, each once. Those that can be no destination from elsewhere are left
// out.
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

// ingressIPs are the addresses of a load balancer whose packets arrive with them as their destination (KEP-1860).
func ingressIPs(s *corev1.Service) []string {
	var all []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IP != "" && (i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP) {
			all = append(all, i.IP)
		}
	}
	return all
}

// sourceRanges are the ranges of a family that may reach the load balancer's addresses. None of ranges holds another,
// which is what the kernel's set takes.
func sourceRanges(s *corev1.Service, f family) (restricted bool, ranges []netip.Prefix) {
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		restricted = true
		if p, err := netip.ParsePrefix(text); err == nil && f.has(p.Addr()) && len(ranges) < maxSources {
			ranges = append(ranges, p.Masked())
		}
	}
	return restricted, distinct(ranges)
}

// distinct sorts ranges and leaves out those that lie in another one.
func distinct(ranges []netip.Prefix) []netip.Prefix {
	slices.SortFunc(ranges, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var kept []netip.Prefix
	for _, r := range ranges {
		if len(kept) == 0 || !kept[len(kept)-1].Contains(r.Addr()) {
			kept = append(kept, r)
		}
	}
	return kept
}

// affinity is how long a client stays with its endpoint; 0 if it does not.
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

// checkedNodePort is the node port on which the health of a Service's local endpoints is served; 0 for none.
func checkedNodePort(s *corev1.Service) uint16 {
	port := s.Spec.HealthCheckNodePort
	if !served(s) || s.Spec.Type != corev1.ServiceTypeLoadBalancer || port <= 0 || port >= 1<<16 ||
		s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return 0
	}
	return uint16(port)
}
