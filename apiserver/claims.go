package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// A Service holds cluster IPs and node ports that no other may have. Each is a claim: a
// document of its own, named after what is claimed, that is created and deleted in the
// transactions that create, change and delete the Service. Two servers that pick the same
// address cannot both commit, and there is no allocator whose memory could be wrong.

// The collections of claims. They are no kinds of the API.
const (
	clusterIPClaims = "claims/clusterips"
	nodePortClaims  = "claims/nodeports"
)

// Where addresses and ports come from by default (--service-cluster-ip-range,
// --service-node-port-range). The first addresses of a range are not given out at random.
var (
	defaultServiceCIDR = netip.MustParsePrefix("10.96.0.0/16")
	defaultNodePorts   = [2]int32{30000, 32767}
)

// pickAttempts is how many random values are tried before every one is.
const pickAttempts = 32

// claimsOf are the keys of what the object holds.
func claimsOf(res *api.Resource, obj api.Object) []storage.Key {
	service, ok := obj.(*corev1.Service)
	if !ok || res.Group != "" {
		return nil
	}
	var keys []storage.Key
	for _, ip := range service.Spec.ClusterIPs {
		if ip != "" && ip != corev1.ClusterIPNone {
			keys = append(keys, storage.Key{Collection: clusterIPClaims, Name: ip})
		}
	}
	ports := []int32{service.Spec.HealthCheckNodePort}
	for _, p := range service.Spec.Ports {
		ports = append(ports, p.NodePort)
	}
	slices.Sort(ports)
	for _, p := range slices.Compact(ports) { // one port may serve TCP and UDP
		if p != 0 {
			keys = append(keys, storage.Key{Collection: nodePortClaims, Name: strconv.Itoa(int(p))})
		}
	}
	return keys
}

// errClaimLost means that another server was quicker to claim, or to give up, what a commit
// was about. Nothing was stored; trying again picks something else.
var errClaimLost = errors.New("what was to be claimed has just been taken")

// claim returns the object with the addresses and ports that it lacked, and the writes by
// which claims come and go with the change from old (nil on create) to obj (nil on delete).
func (s *Server) claim(ctx context.Context, res *api.Resource, obj, old api.Object) (api.Object, []storage.Write, error) {
	var have, want []storage.Key
	if old != nil {
		have = claimsOf(res, old)
	}
	if service, ok := obj.(*corev1.Service); ok && res.Group == "" {
		service = service.DeepCopy() // a second attempt must find what the client sent
		if err := s.allocate(res, service, have); err != nil {
			return nil, nil, err
		}
		obj, want = service, claimsOf(res, service)
	}
	writes, err := s.claimWrites(ctx, obj, have, want)
	return obj, writes, err
}

func (s *Server) claimWrites(ctx context.Context, obj api.Object, have, want []storage.Key) ([]storage.Write, error) {
	var writes []storage.Write
	for _, key := range want {
		if slices.Contains(have, key) {
			continue
		}
		doc, err := json.Marshal(map[string]any{"metadata": map[string]string{"name": key.Name}, "holder": obj.GetNamespace() + "/" + obj.GetName()})
		if err != nil {
			return nil, fmt.Errorf("encoding a claim: %w", err)
		}
		writes = append(writes, storage.Write{Op: storage.Create, Key: key, Value: doc})
	}
	for _, key := range have {
		if slices.Contains(want, key) {
			continue
		}
		held, err := s.Store.Collection(key.Collection, storage.CollectionOptions{}).Get(ctx, "", key.Name, storage.At{})
		if errors.Is(err, storage.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		writes = append(writes, storage.Write{Op: storage.Delete, Key: key, Expect: held.Revision})
	}
	return writes, nil
}

// allocate fills in what a Service of its type must have. held are the claims it has.
func (s *Server) allocate(res *api.Resource, service *corev1.Service, held []storage.Key) error {
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	var errs field.ErrorList
	errs = append(errs, s.allocateIP(service, held)...)
	errs = append(errs, s.allocatePorts(service, held)...)
	return invalidObject(res, service.Name, errs)
}

func (s *Server) allocateIP(service *corev1.Service, held []storage.Key) field.ErrorList {
	spec := &service.Spec
	path := field.NewPath("spec")
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	single := corev1.IPFamilyPolicySingleStack
	if spec.IPFamilyPolicy == nil {
		spec.IPFamilyPolicy = &single
	}
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack || len(spec.IPFamilies) > 1 {
		return field.ErrorList{field.Invalid(path.Child("ipFamilyPolicy"), *spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services")}
	}
	if spec.IPFamilies[0] != corev1.IPv4Protocol {
		return field.ErrorList{field.Invalid(path.Child("ipFamilies").Index(0), spec.IPFamilies[0], "not configured on this cluster")}
	}
	if len(spec.ClusterIPs) == 0 {
		ip, ok := s.pickIP()
		if !ok {
			return field.ErrorList{field.InternalError(path.Child("clusterIPs"), errors.New("range is full"))}
		}
		spec.ClusterIPs = []string{ip}
		spec.ClusterIP = ip
		return nil
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	if spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	return s.checkClaim(path.Child("clusterIPs").Index(0), spec.ClusterIP, clusterIPClaims, held, func() string {
		if ip, err := netip.ParseAddr(spec.ClusterIP); err != nil || !defaultServiceCIDR.Contains(ip) {
			return fmt.Sprintf("the provided IP (%v) is not in the valid range. The range of valid IPs is %v", spec.ClusterIP, defaultServiceCIDR)
		}
		return ""
	})
}

func (s *Server) allocatePorts(service *corev1.Service, held []storage.Key) field.ErrorList {
	spec := &service.Spec
	auto := spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeLoadBalancer && (spec.AllocateLoadBalancerNodePorts == nil || *spec.AllocateLoadBalancerNodePorts)
	taken := map[int32]corev1.Protocol{}
	var errs field.ErrorList
	for i := range spec.Ports {
		port := &spec.Ports[i]
		path := field.NewPath("spec", "ports").Index(i).Child("nodePort")
		if port.NodePort != 0 {
			errs = append(errs, s.checkPort(path, port.NodePort, held)...)
			taken[port.NodePort] = port.Protocol
			continue
		}
		if !auto {
			continue
		}
		n, ok := s.pickPort(taken)
		if !ok {
			errs = append(errs, field.InternalError(path, errors.New("range is full")))
			continue
		}
		port.NodePort = n
		taken[n] = port.Protocol
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		path := field.NewPath("spec", "healthCheckNodePort")
		if spec.HealthCheckNodePort != 0 {
			return append(errs, s.checkPort(path, spec.HealthCheckNodePort, held)...)
		}
		n, ok := s.pickPort(taken)
		if !ok {
			return append(errs, field.InternalError(path, errors.New("range is full")))
		}
		spec.HealthCheckNodePort = n
	}
	return errs
}

func (s *Server) checkPort(path *field.Path, port int32, held []storage.Key) field.ErrorList {
	return s.checkClaim(path, strconv.Itoa(int(port)), nodePortClaims, held, func() string {
		if port < defaultNodePorts[0] || port > defaultNodePorts[1] {
			return fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %d-%d", defaultNodePorts[0], defaultNodePorts[1])
		}
		return ""
	})
}

// checkClaim refuses a value that a client chose if it is out of range or taken. Who takes
// it at the same time is found out by the commit.
func (s *Server) checkClaim(path *field.Path, value, collection string, held []storage.Key, outOfRange func() string) field.ErrorList {
	if slices.Contains(held, storage.Key{Collection: collection, Name: value}) {
		return nil
	}
	if why := outOfRange(); why != "" {
		return field.ErrorList{field.Invalid(path, value, why)}
	}
	if s.claimed(collection, value) {
		return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("failed to allocate %s: provided value is already allocated", value))}
	}
	return nil
}

func (s *Server) claimed(collection, name string) bool {
	_, err := s.Store.Collection(collection, storage.CollectionOptions{}).Get(context.Background(), "", name, storage.At{Any: true})
	return err == nil
}

// pickIP returns a free address, at random so that servers which race seldom meet.
func (s *Server) pickIP() (string, bool) {
	base := defaultServiceCIDR.Masked().Addr().As4()
	size := 1 << (32 - defaultServiceCIDR.Bits())
	first := uint32(base[0])<<24 | uint32(base[1])<<16 | uint32(base[2])<<8 | uint32(base[3])
	at := func(i int) string {
		n := first + uint32(i)
		return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}).String()
	}
	// The first ten are for well-known services; the network's own and the broadcast
	// address are nobody's.
	return pick(10, size-1, func(i int) (string, bool) { ip := at(i); return ip, !s.claimed(clusterIPClaims, ip) })
}

func (s *Server) pickPort(taken map[int32]corev1.Protocol) (int32, bool) {
	return pick(int(defaultNodePorts[0]), int(defaultNodePorts[1])+1, func(i int) (int32, bool) {
		_, ours := taken[int32(i)]
		return int32(i), !ours && !s.claimed(nodePortClaims, strconv.Itoa(i))
	})
}

// pick tries values of [from, to): some at random, then all.
func pick[T any](from, to int, try func(int) (T, bool)) (T, bool) {
	for range pickAttempts {
		if v, ok := try(from + rand.IntN(to-from)); ok {
			return v, true
		}
	}
	for i := from; i < to; i++ {
		if v, ok := try(i); ok {
			return v, true
		}
	}
	var none T
	return none, false
}
