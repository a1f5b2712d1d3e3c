package servicealloc

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

	"github.com/coxswain-dev/coxswain/storage"
)

// nodePorts is the collection of node port reservations, which are not part of the API. The reservation of an
// address is its IPAddress, which users can see (KEP-1880).
const nodePorts = "claims/nodeports"

// ipAllocator labels the IPAddresses that are reservations.
const ipAllocator = "ipallocator.k8s.io"

// keysOf returns the keys of the reservations that a Service holds. The Service may be nil.
func (a *Allocator) keysOf(service *corev1.Service) []storage.Key {
	if service == nil {
		return nil
	}
	var keys []storage.Key
	for _, ip := range service.Spec.ClusterIPs {
		if ip != "" && ip != corev1.ClusterIPNone {
			keys = append(keys, a.addressKey(ip))
		}
	}
	ports := []int32{service.Spec.HealthCheckNodePort}
	for _, p := range service.Spec.Ports {
		ports = append(ports, p.NodePort)
	}
	slices.Sort(ports)
	for _, p := range slices.Compact(ports) { // one port may serve TCP and UDP
		if p != 0 {
			keys = append(keys, portKey(p))
		}
	}
	return keys
}

// addressKey returns the key of an address's reservation, named by the canonical form of the address.
func (a *Allocator) addressKey(ip string) storage.Key {
	if addr, err := netip.ParseAddr(ip); err == nil {
		ip = addr.String()
	}
	return storage.Key{Collection: a.address.Collection(), Name: ip}
}

func portKey(port int32) storage.Key {
	return storage.Key{Collection: nodePorts, Name: strconv.Itoa(int(port))}
}

// writes returns the writes that change the reservations of holder from have to want.
func (a *Allocator) writes(ctx context.Context, holder *corev1.Service, have,
	want []storage.Key) ([]storage.Write, error) {
	var writes []storage.Write
	for _, key := range want {
		if slices.Contains(have, key) {
			continue
		}
		doc, err := a.document(key, holder)
		if err != nil {
			return nil, err
		}
		writes = append(writes, storage.Write{Op: storage.Create, Key: key, Value: doc})
	}
	for _, key := range have {
		if slices.Contains(want, key) {
			continue
		}
		stored, err := a.reservations(key.Collection).Get(ctx, "", key.Name, storage.At{})
		if errors.Is(err, storage.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if owner, err := holderOf(stored); err != nil || owner != holder.GetNamespace()+"/"+holder.GetName() {
			continue // deleted by hand; another Service has the address or port now
		}
		writes = append(writes, storage.Write{Op: storage.Delete, Key: key, Expect: stored.Revision})
	}
	return writes, nil
}

// reservations opens a collection of reservations.
func (a *Allocator) reservations(collection string) *storage.Collection {
	if collection == nodePorts {
		return a.Store.Collection(nodePorts, storage.CollectionOptions{})
	}
	return a.Objects.Collection(a.address)
}

// reserved reports whether the address or port is reserved according to memory. It does not detect concurrent
// reservations by another server; the commit fails then.
func (a *Allocator) reserved(key storage.Key) bool {
	_, err := a.reservations(key.Collection).Get(context.Background(), "", key.Name, storage.At{Any: true})
	return err == nil
}

// taken does the same as reserved, but confirms a reservation with memory that is as recent as etcd, since a client
// is refused because of it.
func (a *Allocator) taken(ctx context.Context, key storage.Key) bool {
	if !a.reserved(key) {
		return false
	}
	_, err := a.reservations(key.Collection).Get(ctx, "", key.Name, storage.At{})
	return err == nil
}

// portReservation is the document that reserves a node port.
type portReservation struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Holder string `json:"holder"` // namespace/name
}

// document encodes the reservation with the given key.
func (a *Allocator) document(key storage.Key, holder *corev1.Service) ([]byte, error) {
	if key.Collection == nodePorts {
		var doc portReservation
		doc.Metadata.Name, doc.Holder = key.Name, holder.GetNamespace()+"/"+holder.GetName()
		return json.Marshal(doc)
	}
	family := corev1.IPv4Protocol
	if addr, err := netip.ParseAddr(key.Name); err == nil && addr.Is6() {
		family = corev1.IPv6Protocol
	}
	w, err := a.Objects.Create(a.address, &networkingv1.IPAddress{
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

// holderOf returns the namespace/name of the Service that holds a reservation, or "" if no Service does.
func holderOf(o *storage.Object) (string, error) {
	if o.Key.Collection == nodePorts {
		var doc portReservation
		if err := json.Unmarshal(o.JSON, &doc); err != nil {
			return "", fmt.Errorf("the reservation %s: %w", o.Key, err)
		}
		return doc.Holder, nil
	}
	address, err := decode[networkingv1.IPAddress](o)
	if err != nil {
		return "", err
	}
	ref := address.Spec.ParentRef
	if address.Labels[networkingv1.LabelManagedBy] != ipAllocator || ref == nil || ref.Group != "" ||
		ref.Resource != "services" {
		return "", nil
	}
	return ref.Namespace + "/" + ref.Name, nil
}
