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

// nodePorts is the collection of the reservations of node ports, which are no kind of the API. The one of an address
// is its IPAddress, which users can see (KEP-1880).
const nodePorts = "claims/nodeports"

// ipAllocator marks the IPAddresses that are reservations.
const ipAllocator = "ipallocator.k8s.io"

// keysOf are the keys of the reservations that a Service, which may be nil, holds.
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

// addressKey is the key of an address's reservation, whose name is the address in canonical form.
func (a *Allocator) addressKey(ip string) storage.Key {
	if addr, err := netip.ParseAddr(ip); err == nil {
		ip = addr.String()
	}
	return storage.Key{Collection: a.address.Collection(), Name: ip}
}

func portKey(port int32) storage.Key {
	return storage.Key{Collection: nodePorts, Name: strconv.Itoa(int(port))}
}

// writes are those by which the reservations of holder change from have to want.
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
		held, err := a.reservations(key.Collection).Get(ctx, "", key.Name, storage.At{})
		if errors.Is(err, storage.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if by, err := holderOf(held); err != nil || by != holder.GetNamespace()+"/"+holder.GetName() {
			continue // it was deleted by hand, and another Service has the address or port now
		}
		writes = append(writes, storage.Write{Op: storage.Delete, Key: key, Expect: held.Revision})
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

// reserved reports whether the address or port is reserved, as far as memory knows. That another server reserves it at
// the same time shows in the commit.
func (a *Allocator) reserved(key storage.Key) bool {
	_, err := a.reservations(key.Collection).Get(context.Background(), "", key.Name, storage.At{Any: true})
	return err == nil
}

// taken is reserved, checked against memory that is as new as etcd: a client is refused because of it.
func (a *Allocator) taken(ctx context.Context, key storage.Key) bool {
	if !a.reserved(key) {
		return false
	}
	_, err := a.reservations(key.Collection).Get(ctx, "", key.Name, storage.At{})
	return err == nil
}

// portReservation reserves a node port.
type portReservation struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Holder string `json:"holder"` // namespace/name
}

// document is the reservation with that key.
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

// holderOf is the namespace/name of the Service that a reservation is for; "" where it is no Service's.
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
