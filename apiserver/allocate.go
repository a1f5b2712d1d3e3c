package apiserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// What a Service is given when it is written: families, cluster IPs and node ports, by
// kube-apiserver's rules. Nothing is taken here; the claims are (claims.go).
// https://kubernetes.io/docs/concepts/services-networking/dual-stack/

// Where addresses and ports come from by default.
var (
	DefaultServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	DefaultNodePorts    = net.PortRange{Base: 30000, Size: 2768}
)

// checkServiceRanges refuses ranges that no Service could be served from.
func checkServiceRanges(cidrs []netip.Prefix, ports net.PortRange) error {
	if len(cidrs) > 2 || len(cidrs) == 2 && cidrs[0].Addr().Is4() == cidrs[1].Addr().Is4() {
		return errors.New("--service-cluster-ip-range must hold one CIDR, or one of each IP family")
	}
	for _, c := range cidrs {
		if c.Addr().BitLen()-c.Bits() < 3 {
			return fmt.Errorf("--service-cluster-ip-range: %s has less than 8 addresses", c)
		}
	}
	if ports.Size <= 0 || ports.Base < 1 || ports.Base+ports.Size-1 > 65535 {
		return fmt.Errorf("--service-node-port-range: %s is not a range of ports", ports.String())
	}
	return nil
}

// allocate fills in what a Service of its type must have. old is what it takes the place of,
// nil on create; held are the claims it has.
func (s *Server) allocate(ctx context.Context, res *api.Resource, service, old *corev1.Service, held []storage.Key) error {
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if err := invalidObject(res, service.Name, s.chooseFamilies(service, old)); err != nil {
		return err
	}
	errs, err := s.allocateIPs(ctx, service, held)
	if err != nil {
		return err
	}
	portErrs, err := s.allocatePorts(ctx, service, held)
	if err != nil {
		return err
	}
	return invalidObject(res, service.Name, append(errs, portErrs...))
}

func familyOf(ip string) corev1.IPFamily {
	if strings.Contains(ip, ":") {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func familyOfPrefix(p netip.Prefix) corev1.IPFamily {
	if p.Addr().Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// clusterFamilies are the IP families of Services here, the default one first.
func (s *Server) clusterFamilies() []corev1.IPFamily {
	families := make([]corev1.IPFamily, len(s.ServiceCIDRs))
	for i, c := range s.ServiceCIDRs {
		families[i] = familyOfPrefix(c)
	}
	return families
}

// chooseFamilies settles ipFamilyPolicy and ipFamilies. A Service that prefers two families,
// and is not changed in that, keeps what it has when the cluster gains or loses one.
func (s *Server) chooseFamilies(service, old *corev1.Service) field.ErrorList {
	spec := &service.Spec
	if old != nil && keepsPreferred(spec, &old.Spec) {
		return nil
	}
	choosePolicy(spec, old)
	errs := reduceFamilies(spec, old)
	cluster, path := s.clusterFamilies(), field.NewPath("spec")
	for i, ip := range spec.ClusterIPs {
		if ip == corev1.ClusterIPNone || i < len(spec.IPFamilies) {
			continue
		}
		if family := familyOf(ip); slices.Contains(cluster, family) {
			spec.IPFamilies = append(spec.IPFamilies, family)
		} else {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(i), spec.ClusterIPs, fmt.Sprintf("%s is not configured on this cluster", family)))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	policy := *spec.IPFamilyPolicy
	// Nobody but its author knows what a headless Service without selector points to.
	free := spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0
	if !free {
		if policy == corev1.IPFamilyPolicyRequireDualStack && len(cluster) < 2 {
			errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), policy, "this cluster is not configured for dual-stack services"))
		}
		for i, family := range spec.IPFamilies {
			if !slices.Contains(cluster, family) {
				errs = append(errs, field.Invalid(path.Child("ipFamilies").Index(i), family, "not configured on this cluster"))
			}
		}
		if len(errs) > 0 {
			return errs
		}
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = cluster[:1]
	}
	if policy != corev1.IPFamilyPolicySingleStack && len(spec.IPFamilies) == 1 && (free || len(cluster) == 2) {
		spec.IPFamilies = append(slices.Clone(spec.IPFamilies), otherFamily(spec.IPFamilies[0]))
	}
	return nil
}

// keepsPreferred reports whether an update leaves alone what a PreferDualStack Service has.
func keepsPreferred(spec, old *corev1.ServiceSpec) bool {
	prefers := func(p *corev1.IPFamilyPolicy) bool { return p == nil || *p == corev1.IPFamilyPolicyPreferDualStack }
	return spec.Type == old.Type && prefers(spec.IPFamilyPolicy) && prefers(old.IPFamilyPolicy) && old.IPFamilyPolicy != nil &&
		slices.Equal(spec.ClusterIPs, old.ClusterIPs) && slices.Equal(spec.IPFamilies, old.IPFamilies)
}

func choosePolicy(spec *corev1.ServiceSpec, old *corev1.Service) {
	policy := corev1.IPFamilyPolicySingleStack
	switch {
	case spec.IPFamilyPolicy != nil:
		return
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		policy = *old.Spec.IPFamilyPolicy
	case spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0:
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	spec.IPFamilyPolicy = &policy
}

// reduceFamilies takes the second family and address from a Service that becomes SingleStack,
// and refuses to have them taken otherwise.
func reduceFamilies(spec *corev1.ServiceSpec, old *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	policy, path := *spec.IPFamilyPolicy, field.NewPath("spec", "ipFamilyPolicy")
	refuse := func(if_ bool, why string) {
		if if_ {
			errs = append(errs, field.Invalid(path, policy, why))
		}
	}
	single := policy == corev1.IPFamilyPolicySingleStack
	if old != nil && single {
		if len(spec.ClusterIPs) > 1 && slices.Equal(spec.ClusterIPs, old.Spec.ClusterIPs) {
			spec.ClusterIPs = spec.ClusterIPs[:1]
		}
		if len(spec.IPFamilies) > 1 && slices.Equal(spec.IPFamilies, old.Spec.IPFamilies) {
			spec.IPFamilies = spec.IPFamilies[:1]
		}
	}
	if old != nil && !single {
		refuse(len(spec.ClusterIPs) == 1 && len(old.Spec.ClusterIPs) == 2 && spec.ClusterIPs[0] == old.Spec.ClusterIPs[0],
			"must be 'SingleStack' to release the secondary cluster IP")
		refuse(len(spec.IPFamilies) == 1 && len(old.Spec.IPFamilies) == 2 && spec.IPFamilies[0] == old.Spec.IPFamilies[0],
			"must be 'SingleStack' to release the secondary IP family")
	}
	refuse(single && len(spec.ClusterIPs) == 2, "must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified")
	refuse(single && len(spec.IPFamilies) == 2, "must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified")
	return errs
}

// allocateIPs gives the Service an address of each of its families.
func (s *Server) allocateIPs(ctx context.Context, service *corev1.Service, held []storage.Key) (field.ErrorList, error) {
	spec := &service.Spec
	if spec.ClusterIP == corev1.ClusterIPNone {
		return nil, nil
	}
	ips := slices.Clone(spec.ClusterIPs)
	ranges := s.serviceRanges()
	var errs field.ErrorList
	for i, family := range spec.IPFamilies {
		if i < len(ips) && ips[i] != "" {
			if why := s.refuseIP(ctx, ips[i], ranges, held); why != "" {
				errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs"), spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", ips[i], why)))
			}
			continue
		}
		ip, ok := s.pickIP(ranges, family)
		if !ok {
			return nil, apierrors.NewInternalError(errors.New("failed to allocate a serviceIP: range is full"))
		}
		ips = append(ips[:i], ip)
	}
	spec.ClusterIPs = ips
	if len(ips) > 0 {
		spec.ClusterIP = ips[0]
	}
	return errs, nil
}

// serviceRanges are what cluster IPs are taken from: the server's own ranges and those of
// the ServiceCIDRs that users have added.
func (s *Server) serviceRanges() []netip.Prefix {
	ranges := slices.Clone(s.ServiceCIDRs)
	list, err := s.collection(s.kinds.serviceCIDR).List(context.Background(), storage.ListRequest{At: storage.At{Any: true}})
	if err != nil {
		return ranges
	}
	for _, o := range list.Items {
		obj, err := decode(s.kinds.serviceCIDR, o)
		if err != nil {
			continue
		}
		c := obj.(*networkingv1.ServiceCIDR)
		ready := apimeta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
		if c.DeletionTimestamp != nil || ready != nil && ready.Status != metav1.ConditionTrue {
			continue
		}
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil && !slices.Contains(ranges, p) {
				ranges = append(ranges, p)
			}
		}
	}
	return ranges
}

// refuseIP says why a client cannot have the address it chose, "" if it can. Who takes it at
// the same time is found out by the commit.
func (s *Server) refuseIP(ctx context.Context, ip string, ranges []netip.Prefix, held []storage.Key) string {
	key := s.addressClaim(ip)
	if slices.Contains(held, key) {
		return ""
	}
	addr, err := netip.ParseAddr(key.Name)
	if err != nil {
		return err.Error()
	}
	at := slices.IndexFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
	if at < 0 {
		return "the provided network does not match the current range"
	}
	if h := hostsOf(ranges[at]); h.size == 0 || addr.Less(h.at(0)) || h.at(h.size-1).Less(addr) {
		return fmt.Sprintf("the provided IP (%v) is not in the valid range. The range of valid IPs is %v", ip, ranges[at])
	}
	if s.taken(ctx, key) {
		return "provided IP is already allocated"
	}
	return ""
}

// hosts are the addresses of a range that a Service may have: not the network's own, nor
// the broadcast address of IPv4. A range of one address has none.
type hosts struct {
	network netip.Addr
	size    uint64
}

func hostsOf(p netip.Prefix) hosts {
	bits := min(p.Addr().BitLen()-p.Bits(), 62) // nobody has more Services than that
	h := hosts{p.Masked().Addr(), 1<<bits - 1}
	if p.Addr().Is4() && h.size > 0 {
		h.size--
	}
	return h
}

// at is the address at an offset from the first.
func (h hosts) at(offset uint64) netip.Addr {
	b := h.network.As16() // an IPv4 address is in the last four bytes
	low := binary.BigEndian.Uint64(b[8:]) + offset + 1
	binary.BigEndian.PutUint64(b[8:], low)
	return netip.AddrFrom16(b).Unmap()
}

// reserved is how many addresses at the start of a range are given at random only when the
// others are taken, so that they are free for who wants a certain one (KEP-3070).
func reserved(size uint64) uint64 {
	if size <= 16 {
		return 0
	}
	return min(max(size/16, 16), 256)
}

// reservedPorts is the same for node ports (KEP-3668).
func reservedPorts(size int) int {
	if size <= 16 {
		return 0
	}
	return min(max(size/32, 16), 128)
}

// pickIP returns a free address, at random so that servers which race seldom meet.
func (s *Server) pickIP(ranges []netip.Prefix, family corev1.IPFamily) (string, bool) {
	for _, p := range ranges {
		if familyOfPrefix(p) != family {
			continue
		}
		h := hostsOf(p)
		try := func(offset uint64) (string, bool) {
			key := s.addressClaim(h.at(offset).String())
			return key.Name, !s.claimed(key)
		}
		if ip, ok := pick(reserved(h.size), h.size, try); ok {
			return ip, true
		}
		if ip, ok := pick(0, reserved(h.size), try); ok {
			return ip, true
		}
	}
	return "", false
}

// needsNodePorts reports whether each port of the Service is to have a node port.
func needsNodePorts(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeLoadBalancer && (spec.AllocateLoadBalancerNodePorts == nil || *spec.AllocateLoadBalancerNodePorts)
}

func (s *Server) allocatePorts(ctx context.Context, service *corev1.Service, held []storage.Key) (field.ErrorList, error) {
	spec := &service.Spec
	var errs field.ErrorList
	// TCP and UDP may share a number: the first port that names one decides about its claim.
	chosen := map[int32]bool{}
	for i := range spec.Ports {
		port := spec.Ports[i].NodePort
		if port == 0 || chosen[port] {
			continue
		}
		chosen[port] = true
		if why := s.refusePort(ctx, port, held); why != "" {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), port, why))
		}
	}
	if needsNodePorts(spec) && len(errs) == 0 {
		for i := range spec.Ports {
			port := &spec.Ports[i]
			if port.NodePort != 0 {
				continue
			}
			if port.NodePort = sharedPort(spec.Ports, port); port.NodePort != 0 {
				continue
			}
			n, ok := s.pickPort(chosen)
			if !ok {
				return nil, apierrors.NewInternalError(errors.New("failed to allocate a nodePort: range is full"))
			}
			port.NodePort = n
		}
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer || spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return errs, nil
	}
	if port := spec.HealthCheckNodePort; port != 0 {
		if why := s.refusePort(ctx, port, held); why != "" {
			return nil, apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %v", port, why))
		}
		return errs, nil
	}
	n, ok := s.pickPort(chosen)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("failed to allocate a HealthCheck NodePort: range is full"))
	}
	spec.HealthCheckNodePort = n
	return errs, nil
}

// sharedPort is the node port of another protocol at the same port: DNS is served on one
// number, over TCP and UDP.
func sharedPort(ports []corev1.ServicePort, p *corev1.ServicePort) int32 {
	var port int32
	for i := range ports {
		other := &ports[i]
		if other.NodePort == 0 {
			continue
		}
		if other.Port == p.Port && other.Protocol != p.Protocol {
			port = other.NodePort
		}
	}
	for i := range ports {
		if ports[i].NodePort == port && ports[i].Protocol == p.Protocol {
			return 0
		}
	}
	return port
}

func (s *Server) refusePort(ctx context.Context, port int32, held []storage.Key) string {
	key := portClaim(port)
	switch {
	case slices.Contains(held, key):
		return ""
	case !s.NodePorts.Contains(int(port)):
		return fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %s", s.NodePorts.String())
	case s.taken(ctx, key):
		return "provided port is already allocated"
	}
	return ""
}

// pickPort returns a free port that is not chosen, and chooses it.
func (s *Server) pickPort(chosen map[int32]bool) (int32, bool) {
	try := func(offset uint64) (int32, bool) {
		port := int32(s.NodePorts.Base) + int32(offset)
		return port, !chosen[port] && !s.claimed(portClaim(port))
	}
	size := uint64(s.NodePorts.Size)
	split := uint64(reservedPorts(s.NodePorts.Size))
	port, ok := pick(split, size, try)
	if !ok {
		port, ok = pick(0, split, try)
	}
	chosen[port] = ok
	return port, ok
}

const (
	// pickAttempts is how many random values are tried before they are tried in their order,
	pickAttempts = 32
	// and scanAttempts how many then: more than a range of IPv4 has that is in use.
	scanAttempts = 1 << 20
)

// pick tries values of [from, to): some at random, then all.
func pick[T any](from, to uint64, try func(uint64) (T, bool)) (T, bool) {
	var none T
	if from >= to {
		return none, false
	}
	for range pickAttempts {
		if v, ok := try(from + rand.Uint64N(to-from)); ok {
			return v, true
		}
	}
	for i := from; i < min(to, from+scanAttempts); i++ {
		if v, ok := try(i); ok {
			return v, true
		}
	}
	return none, false
}
