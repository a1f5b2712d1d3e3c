package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// A Service holds cluster IPs and node ports that no other may have. Each is a claim: a
// document of its own, named after what is claimed, that is created and deleted in the
// transactions that create, change and delete the Service. Two servers that pick the same
// address cannot both commit, and there is no allocator whose memory could be wrong.
//
// The claim on an address is an IPAddress, which users can see (KEP-1880); that on a port is
// no kind of the API. What a Service is given is chosen in allocate.go.

// nodePortClaims is the collection of the claims on node ports.
const nodePortClaims = "claims/nodeports"

// ipAllocator marks the IPAddresses that are claims.
const ipAllocator = "ipallocator.k8s.io"

// errClaimLost means that another server was quicker to claim, or to give up, what a commit
// was about. Nothing was stored; trying again picks something else.
var errClaimLost = errors.New("what was to be claimed has just been taken")

// claimsOf are the keys of what the object holds.
func (s *Server) claimsOf(res *api.Resource, obj api.Object) []storage.Key {
	service, ok := obj.(*corev1.Service)
	if !ok || res.Group != "" {
		return nil
	}
	var keys []storage.Key
	for _, ip := range service.Spec.ClusterIPs {
		if ip != "" && ip != corev1.ClusterIPNone {
			keys = append(keys, s.addressClaim(ip))
		}
	}
	ports := []int32{service.Spec.HealthCheckNodePort}
	for _, p := range service.Spec.Ports {
		ports = append(ports, p.NodePort)
	}
	slices.Sort(ports)
	for _, p := range slices.Compact(ports) { // one port may serve TCP and UDP
		if p != 0 {
			keys = append(keys, portClaim(p))
		}
	}
	return keys
}

// addressClaim is the key of the IPAddress of that name: the address in its canonical form.
func (s *Server) addressClaim(ip string) storage.Key {
	if addr, err := netip.ParseAddr(ip); err == nil {
		ip = addr.String()
	}
	return storage.Key{Collection: s.kinds.ipAddress.Collection(), Name: ip}
}

func portClaim(port int32) storage.Key {
	return storage.Key{Collection: nodePortClaims, Name: strconv.Itoa(int(port))}
}

// claim returns the object with the addresses and ports that it lacked, and the writes by
// which claims come and go with the change from old (nil on create) to obj (nil on delete).
func (s *Server) claim(ctx context.Context, res *api.Resource, obj, old api.Object) (api.Object, []storage.Write, error) {
	var have, want []storage.Key
	if old != nil {
		have = s.claimsOf(res, old)
	}
	if service, ok := obj.(*corev1.Service); ok && res.Group == "" {
		before, _ := old.(*corev1.Service)
		service = service.DeepCopy() // a second attempt must find what the client sent
		if err := s.allocate(ctx, res, service, before, have); err != nil {
			return nil, nil, err
		}
		obj, want = service, s.claimsOf(res, service)
	}
	holder := obj
	if holder == nil {
		holder = old
	}
	writes, err := s.claimWrites(ctx, holder, have, want)
	return obj, writes, err
}

func (s *Server) claimWrites(ctx context.Context, holder api.Object, have, want []storage.Key) ([]storage.Write, error) {
	var writes []storage.Write
	for _, key := range want {
		if slices.Contains(have, key) {
			continue
		}
		doc, err := s.claimDocument(key, holder)
		if err != nil {
			return nil, err
		}
		writes = append(writes, storage.Write{Op: storage.Create, Key: key, Value: doc})
	}
	for _, key := range have {
		if slices.Contains(want, key) {
			continue
		}
		held, err := s.claims(key.Collection).Get(ctx, "", key.Name, storage.At{})
		if errors.Is(err, storage.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if by, err := holderOf(held); err != nil || by != holder.GetNamespace()+"/"+holder.GetName() {
			continue // somebody took the claim away by hand, and another has it now
		}
		writes = append(writes, storage.Write{Op: storage.Delete, Key: key, Expect: held.Revision})
	}
	return writes, nil
}

// claims opens a collection of claims.
func (s *Server) claims(collection string) *storage.Collection {
	if collection == nodePortClaims {
		return s.Store.Collection(nodePortClaims, storage.CollectionOptions{})
	}
	return s.collection(s.kinds.ipAddress)
}

// claimed reports whether anybody has the claim, as far as memory knows. Who takes it at the
// same time is found out by the commit.
func (s *Server) claimed(key storage.Key) bool {
	_, err := s.claims(key.Collection).Get(context.Background(), "", key.Name, storage.At{Any: true})
	return err == nil
}

// taken is claimed, of which memory that is as new as etcd must be sure, for a client is told.
func (s *Server) taken(ctx context.Context, key storage.Key) bool {
	if !s.claimed(key) {
		return false
	}
	_, err := s.claims(key.Collection).Get(ctx, "", key.Name, storage.At{})
	return err == nil
}

// portClaimDocument is the claim on a node port.
type portClaimDocument struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Holder string `json:"holder"` // namespace/name
}

func (s *Server) claimDocument(key storage.Key, holder api.Object) ([]byte, error) {
	if key.Collection == nodePortClaims {
		var doc portClaimDocument
		doc.Metadata.Name, doc.Holder = key.Name, holder.GetNamespace()+"/"+holder.GetName()
		return json.Marshal(doc)
	}
	family := corev1.IPv4Protocol
	if addr, err := netip.ParseAddr(key.Name); err == nil && addr.Is6() {
		family = corev1.IPv6Protocol
	}
	w, err := s.firstWrite(s.kinds.ipAddress, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(family),
			networkingv1.LabelManagedBy:       ipAllocator,
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: holder.GetNamespace(), Name: holder.GetName(),
		}},
	})
	return w.Value, err
}

// holderOf is the namespace/name of the Service that a claim is for; "" when it is none of a
// Service's.
func holderOf(claim *storage.Object) (string, error) {
	if claim.Key.Collection == nodePortClaims {
		var doc portClaimDocument
		if err := json.Unmarshal(claim.JSON, &doc); err != nil {
			return "", fmt.Errorf("the claim %s: %w", claim.Key, err)
		}
		return doc.Holder, nil
	}
	var address networkingv1.IPAddress
	if err := json.Unmarshal(claim.JSON, &address); err != nil {
		return "", fmt.Errorf("the claim %s: %w", claim.Key, err)
	}
	ref := address.Spec.ParentRef
	if address.Labels[networkingv1.LabelManagedBy] != ipAllocator || ref == nil || ref.Group != "" || ref.Resource != "services" {
		return "", nil
	}
	return ref.Namespace + "/" + ref.Name, nil
}
