package servicealloc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	apifield "github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/storage"
)

// allocate fills in the families, addresses and ports that the Service's type requires. old is the Service it
// replaces, or nil on create. held lists the reservations of old.
func (a *Allocator) allocate(ctx context.Context, service, old *corev1.Service, held []storage.Key) error {
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if err := a.invalid(service.Name, a.chooseFamilies(service, old)); err != nil {
		return err
	}
	errs, err := a.allocateIPs(ctx, service, held)
	if err != nil {
		return err
	}
	portErrs, err := a.allocatePorts(ctx, service, held)
	if err != nil {
		return err
	}
	return a.invalid(service.Name, append(errs, portErrs...))
}

// invalid returns the error for a Service with invalid requests, or nil if there are none.
func (a *Allocator) invalid(name string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(a.service.GVK().GroupKind(), name, apifield.Few(errs))
}

// allocateIPs gives the Service an address of each of its families.
func (a *Allocator) allocateIPs(ctx context.Context, service *corev1.Service,
	held []storage.Key) (field.ErrorList, error) {
	spec := &service.Spec
	if spec.ClusterIP == corev1.ClusterIPNone {
		return nil, nil
	}
	ips := slices.Clone(spec.ClusterIPs)
	ranges := a.ranges()
	var errs field.ErrorList
	for i, family := range spec.IPFamilies {
		if i < len(ips) && ips[i] != "" {
			if why := a.refuseIP(ctx, ips[i], ranges, held); why != "" {
				errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs"), spec.ClusterIPs,
					fmt.Sprintf("failed to allocate IP %v: %v", ips[i], why)))
			}
			continue
		}
		ip, ok := a.pickIP(ranges, family)
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

// ranges returns the ranges of cluster IPs: the server's own and the ones of ServiceCIDRs.
func (a *Allocator) ranges() []netip.Prefix {
	ranges := slices.Clone(a.CIDRs)
	list, err := a.Objects.Collection(a.cidr).List(context.Background(),
		storage.ListRequest{At: storage.At{Any: true}})
	if err != nil {
		return ranges
	}
	for _, o := range list.Items {
		c, err := decode[networkingv1.ServiceCIDR](o)
		if err != nil {
			continue
		}
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

// refuseIP returns the reason why a client cannot have the address it chose, or "" if it can. It does not detect
// another client that takes the address concurrently; the commit fails then.
func (a *Allocator) refuseIP(ctx context.Context, ip string, ranges []netip.Prefix, held []storage.Key) string {
	key := a.addressKey(ip)
	if slices.Contains(held, key) {
		return ""
	}
	addr, err := netip.ParseAddr(key.Name)
	if err != nil {
		return err.Error()
	}
	i := slices.IndexFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
	if i < 0 {
		return "the provided network does not match the current range"
	}
	if h := hostsOf(ranges[i]); h.size == 0 || addr.Less(h.at(0)) || h.at(h.size-1).Less(addr) {
		return fmt.Sprintf("the provided IP (%v) is not in the valid range. The range of valid IPs is %v",
			ip, ranges[i])
	}
	if a.taken(ctx, key) {
		return "provided IP is already allocated"
	}
	return ""
}

// hosts describes the addresses of a range that a Service may have: all except the network's own and, for IPv4, the
// broadcast address. A range with one address has none.
type hosts struct {
	network netip.Addr
	size    uint64
}

func hostsOf(p netip.Prefix) hosts {
	bits := min(p.Addr().BitLen()-p.Bits(), 62) // more than enough for any cluster
	h := hosts{p.Masked().Addr(), 1<<bits - 1}
	if p.Addr().Is4() && h.size > 0 {
		h.size--
	}
	return h
}

// at returns the address at an offset from the first one.
func (h hosts) at(offset uint64) netip.Addr { // an IPv4 address is in the last four bytes
	b := h.network.As16() // an IPv4 address is in the last four bytes
	low := binary.BigEndian.Uint64(b[8:]) + offset + 1
	binary.BigEndian.PutUint64(b[8:], low)
	return netip.AddrFrom16(b).Unmap()
}

// keptBack returns how many addresses at the start of a range are used only when all others are taken. They stay
// free for clients that choose an address themselves (KEP-3070).
func keptBack(size uint64) uint64 {
	if size <= 16 {
		return 0
	}
	return min(max(size/16, 16), 256)
}

// keptBackPorts does the same for node ports (KEP-3668).
func keptBackPorts(size int) int {
	if size <= 16 {
		return 0
	}
	return min(max(size/32, 16), 128)
}

// pickIP returns a free address. It picks at random, so that concurrent servers rarely pick the same one.
func (a *Allocator) pickIP(ranges []netip.Prefix, family corev1.IPFamily) (string, bool) {
	for _, p := range ranges {
		if familyOfPrefix(p) != family {
			continue
		}
		h := hostsOf(p)
		try := func(offset uint64) (string, bool) {
			key := a.addressKey(h.at(offset).String())
			return key.Name, !a.reserved(key)
		}
		if ip, ok := pick(keptBack(h.size), h.size, try); ok {
			return ip, true
		}
		if ip, ok := pick(0, keptBack(h.size), try); ok {
			return ip, true
		}
	}
	return "", false
}

// needsNodePorts reports whether each port of the Service must have a node port.
func needsNodePorts(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeLoadBalancer && (spec.AllocateLoadBalancerNodePorts == nil ||
			*spec.AllocateLoadBalancerNodePorts)
}

func (a *Allocator) allocatePorts(ctx context.Context, service *corev1.Service,
	held []storage.Key) (field.ErrorList, error) {
	spec := &service.Spec
	var errs field.ErrorList
	// TCP and UDP may share a number, so each number is checked only once.
	chosen := map[int32]bool{}
	for i := range spec.Ports {
		port := spec.Ports[i].NodePort
		if port == 0 || chosen[port] {
			continue
		}
		chosen[port] = true
		if why := a.refusePort(ctx, port, held); why != "" {
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
			n, ok := a.pickPort(chosen)
			if !ok {
				return nil, apierrors.NewInternalError(errors.New("failed to allocate a nodePort: range is full"))
			}
			port.NodePort = n
		}
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer ||
		spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return errs, nil
	}
	if port := spec.HealthCheckNodePort; port != 0 {
		if why := a.refusePort(ctx, port, held); why != "" {
			return nil, apierrors.NewInternalError(
				fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %v", port, why))
		}
		return errs, nil
	}
	n, ok := a.pickPort(chosen)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("failed to allocate a HealthCheck NodePort: range is full"))
	}
	spec.HealthCheckNodePort = n
	return errs, nil
}

// sharedPort returns the node port that the same port has for the other protocol, or 0. DNS uses one number for TCP
// and UDP, for example.
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

func (a *Allocator) refusePort(ctx context.Context, port int32, held []storage.Key) string {
	key := portKey(port)
	switch {
	case slices.Contains(held, key):
		return ""
	case !a.NodePorts.Contains(int(port)):
		return fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %s",
			a.NodePorts.String())
	case a.taken(ctx, key):
		return "provided port is already allocated"
	}
	return ""
}

// pickPort returns a free port that is not in chosen and adds it.
func (a *Allocator) pickPort(chosen map[int32]bool) (int32, bool) {
	try := func(offset uint64) (int32, bool) {
		port := int32(a.NodePorts.Base) + int32(offset)
		return port, !chosen[port] && !a.reserved(portKey(port))
	}
	size := uint64(a.NodePorts.Size)
	split := uint64(keptBackPorts(a.NodePorts.Size))
	port, ok := pick(split, size, try)
	if !ok {
		port, ok = pick(0, split, try)
	}
	chosen[port] = ok
	return port, ok
}

const (
	// pickAttempts is the number of random values tried before a scan in order.
	pickAttempts = 32
	// scanAttempts limits that scan. It exceeds the size of any IPv4 range in use.
	scanAttempts = 1 << 20
)

// pick tries the values in [from, to): first some at random, then in order.
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
