package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/equal"
	"github.com/coxswain-dev/coxswain/storage"
)

// Clients inside of a cluster find the API servers by the Service "kubernetes" in the
// namespace "default". Each server notes its presence in etcd, under a time to live, and
// sets the Endpoints and the EndpointSlice of the Service to all who are present, as
// kube-apiserver's lease reconciler does. A server that ends takes itself out.

const (
	ownServiceName = "kubernetes"
	// presences is the collection of servers that run. It is no kind of the API.
	presences = "claims/apiservers"
	// presenceTTL is how long a server that died is still pointed to.
	presenceTTL = 45 * time.Second
	// publishInterval is how often a server says that it is there: kube-apiserver's interval for its identity Lease.
	publishInterval = 10 * time.Second
	// startPatience and endPatience are how long the start and the end of a server wait for it. Who begins without has
	// no Service kubernetes for an interval.
	startPatience, endPatience = 10 * time.Second, time.Second
	// ownServicePort is where the Service listens.
	ownServicePort = 443
)

// advertised is where other machines reach a server that listens at addr: --advertise-address,
// the address it is bound to, or that of an interface. It is not valid if there is none.
func (s *Server) advertised(addr net.Addr) netip.AddrPort {
	bound, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return netip.AddrPort{}
	}
	ip := s.AdvertiseAddress
	if !ip.IsValid() {
		ip = bound.Addr().Unmap()
	}
	if ip.IsLoopback() || ip.IsUnspecified() { // Endpoints may not point there
		ip = hostAddress()
	}
	if !ip.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip, bound.Port())
}

// hostAddress is the first address of this machine that others may know, IPv4 before IPv6.
func hostAddress() netip.Addr {
	addrs, _ := net.InterfaceAddrs() // who has no interfaces has no address
	var v6 netip.Addr
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().IsGlobalUnicast() {
			continue
		}
		if p.Addr().Is4() {
			return p.Addr()
		}
		if !v6.IsValid() {
			v6 = p.Addr()
		}
	}
	return v6
}

// keepPublished repairs what belongs to Services at once, and says from time to time that
// this server is there, until ctx ends.
func (s *Server) keepPublished(ctx context.Context, at netip.AddrPort) {
	publish, repair := time.NewTicker(publishInterval), time.NewTicker(repairInterval)
	defer publish.Stop()
	defer repair.Stop()
	s.logTrouble(ctx, "repairing the claims of Services", s.repairClaims(ctx))
	for {
		select {
		case <-ctx.Done():
			return
		case <-publish.C:
			s.logTrouble(ctx, "publishing the Service kubernetes", s.publish(ctx, at, true))
		case <-repair.C:
			s.logTrouble(ctx, "repairing the claims of Services", s.repairClaims(ctx))
		}
	}
}

// logTrouble tells of what will be tried again.
func (s *Server) logTrouble(ctx context.Context, doing string, err error) {
	if err != nil && ctx.Err() == nil {
		s.Log.Warn(doing, "error", err)
	}
}

// publishOnce is publish for the start and the end of a server, which wait for it but not long.
func (s *Server) publishOnce(ctx context.Context, at netip.AddrPort, present bool) {
	patience := endPatience
	if present {
		patience = startPatience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.publish(ctx, at, present); err != nil {
		s.Log.Warn("publishing the Service kubernetes", "error", err)
	}
}

// publish makes the Service, and what it points to, as they should be. All is written in
// one transaction, and what is so already is not written.
func (s *Server) publish(ctx context.Context, at netip.AddrPort, present bool) error {
	if !s.kinds.complete() {
		return nil
	}
	for attempt := 1; ; attempt++ {
		writes, err := s.publication(ctx, at, present)
		if err != nil || len(writes) == 0 {
			return err
		}
		_, err = s.Store.Commit(ctx, writes...)
		var refused *storage.Refusal
		if errors.As(err, &refused) && attempt < 5 {
			continue // another server, or a user, was quicker
		}
		return err
	}
}

func (s *Server) publication(ctx context.Context, at netip.AddrPort, present bool) ([]storage.Write, error) {
	var writes []storage.Write
	if present {
		cidr, err := s.defaultServiceCIDR(ctx)
		if err != nil {
			return nil, err
		}
		service, err := s.ownService(ctx, at.Port())
		if err != nil {
			return nil, err
		}
		own, err := s.ownObjects(ctx)
		if err != nil {
			return nil, err
		}
		writes = slices.Concat(cidr, service, own)
	}
	if !at.IsValid() {
		return writes, nil
	}
	presence, all, err := s.presence(ctx, at, present)
	if err != nil {
		return nil, err
	}
	writes = append(writes, presence...)
	endpoints, err := s.ownEndpoints(ctx, all)
	if err != nil {
		return nil, err
	}
	slice, err := s.ownEndpointSlice(ctx, all)
	return slices.Concat(writes, endpoints, slice), err
}

// put is the write, if one is needed, by which an object of the server's own becomes what
// change makes of it; fresh is what it begins as.
func (s *Server) put(ctx context.Context, res *api.Resource, fresh api.Object, change func(api.Object)) ([]storage.Write, error) {
	o, err := s.collection(res).Get(ctx, fresh.GetNamespace(), fresh.GetName(), storage.At{})
	if errors.Is(err, storage.ErrNotFound) {
		change(fresh)
		w, err := s.firstWrite(res, fresh)
		return []storage.Write{w}, err
	}
	if err != nil {
		return nil, err
	}
	return s.amend(res, o, change)
}

// amend is the write, if one is needed, by which a stored object becomes what change makes of it, as the server's
// own doing.
func (s *Server) amend(res *api.Resource, o *storage.Object, change func(api.Object)) ([]storage.Write, error) {
	return s.amendAs(s.self(res), res, o, change)
}

// amendAs is amend by a writer who may be after the status alone.
func (s *Server) amendAs(w writer, res *api.Resource, o *storage.Object, change func(api.Object)) ([]storage.Write, error) {
	old, err := decode(res, o)
	if err != nil {
		return nil, err
	}
	obj := old.DeepCopyObject().(api.Object)
	change(obj)
	if equal.Semantic(obj, old) {
		return nil, nil
	}
	if res.Generation && w.subresource == "" && !sameBesideMeta(obj, old) {
		obj.SetGeneration(old.GetGeneration() + 1)
	}
	owners, err := ownChanged(s.Registry.Snapshot(), res, obj, old, old.GetManagedFields(), w)
	if err != nil {
		return nil, err
	}
	obj.SetManagedFields(owners)
	doc, err := encode(res, obj)
	return []storage.Write{{Op: storage.Update, Key: o.Key, Value: doc, Expect: o.Revision}}, err
}

// defaultServiceCIDR shows --service-cluster-ip-range as an object. It stays what it was made
// with, except that a second family may be added (KEP-1880).
func (s *Server) defaultServiceCIDR(ctx context.Context) ([]storage.Write, error) {
	var cidrs []string
	for _, c := range s.ServiceCIDRs {
		cidrs = append(cidrs, c.String())
	}
	return s.put(ctx, s.kinds.serviceCIDR, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: ownServiceName}}, func(obj api.Object) {
		have := obj.(*networkingv1.ServiceCIDR)
		if n := len(have.Spec.CIDRs); n == 0 || n == 1 && len(cidrs) == 2 && cidrs[0] == have.Spec.CIDRs[0] {
			have.Spec.CIDRs = cidrs
		}
	})
}

// ownService makes the Service with the first address of the range, or moves its target
// port to where this server listens.
func (s *Server) ownService(ctx context.Context, port uint16) ([]storage.Write, error) {
	ports := []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: ownServicePort, TargetPort: intstr.FromInt32(int32(port))}}
	fresh := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: ownServiceName,
		Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"},
	}}
	writes, err := s.put(ctx, s.kinds.service, fresh, func(obj api.Object) { obj.(*corev1.Service).Spec.Ports = ports })
	if err != nil || len(writes) == 0 || writes[0].Op == storage.Update {
		return writes, err
	}
	fresh.Spec.SessionAffinity = corev1.ServiceAffinityNone
	if first := hostsOf(s.ServiceCIDRs[0]).at(0).String(); !s.claimed(s.addressClaim(first)) {
		fresh.Spec.ClusterIP, fresh.Spec.ClusterIPs = first, []string{first}
	}
	obj, claims, err := s.claim(ctx, s.kinds.service, fresh, nil)
	if err != nil {
		return nil, err
	}
	w, err := s.firstWrite(s.kinds.service, obj)
	return append(claims, w), err
}

// presence notes that the server at that address is there, or is no longer, and tells who
// all are, sorted.
func (s *Server) presence(ctx context.Context, at netip.AddrPort, present bool) ([]storage.Write, []netip.AddrPort, error) {
	list, err := s.Store.Collection(presences, storage.CollectionOptions{}).List(ctx, storage.ListRequest{})
	if err != nil {
		return nil, nil, err
	}
	key := storage.Key{Collection: presences, Name: at.String()}
	var doc portClaimDocument
	doc.Metadata.Name = key.Name
	value, err := json.Marshal(doc)
	if err != nil {
		return nil, nil, err
	}
	write := storage.Write{Op: storage.Create, Key: key, Value: value, TTL: presenceTTL}
	var all []netip.AddrPort
	for _, o := range list.Items {
		if o.Key == key {
			write.Op, write.Expect = storage.Update, o.Revision
			continue
		}
		if other, err := netip.ParseAddrPort(o.Key.Name); err == nil {
			all = append(all, other)
		}
	}
	if present {
		all = append(all, at)
	} else if write.Op == storage.Update {
		write.Op, write.Value, write.TTL = storage.Delete, nil, 0
	} else {
		return nil, all, nil
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return []storage.Write{write}, all, nil
}

func (s *Server) ownEndpoints(ctx context.Context, all []netip.AddrPort) ([]storage.Write, error) {
	var subsets []corev1.EndpointSubset
	for _, at := range all {
		address, port := corev1.EndpointAddress{IP: at.Addr().String()}, int32(at.Port())
		same := slices.IndexFunc(subsets, func(sub corev1.EndpointSubset) bool { return sub.Ports[0].Port == port })
		if same >= 0 {
			subsets[same].Addresses = append(subsets[same].Addresses, address)
			continue
		}
		subsets = append(subsets, corev1.EndpointSubset{
			Addresses: []corev1.EndpointAddress{address},
			Ports:     []corev1.EndpointPort{{Name: "https", Port: port, Protocol: corev1.ProtocolTCP}},
		})
	}
	fresh := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: ownServiceName,
		Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}, // the slice is made below
	}}
	return s.put(ctx, s.kinds.endpoints, fresh, func(obj api.Object) { obj.(*corev1.Endpoints).Subsets = subsets })
}

// ownEndpointSlice points to the servers of the first one's family and port: a slice has one
// of each.
func (s *Server) ownEndpointSlice(ctx context.Context, all []netip.AddrPort) ([]storage.Write, error) {
	family := discoveryv1.AddressTypeIPv4
	var endpoints []discoveryv1.Endpoint
	var ports []discoveryv1.EndpointPort
	ready, https, tcp := true, "https", corev1.ProtocolTCP
	for i, at := range all {
		port := int32(at.Port())
		if i == 0 {
			if at.Addr().Is6() {
				family = discoveryv1.AddressTypeIPv6
			}
			ports = []discoveryv1.EndpointPort{{Name: &https, Port: &port, Protocol: &tcp}}
		}
		if at.Addr().Is6() == all[0].Addr().Is6() && at.Port() == all[0].Port() {
			endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{at.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
		}
	}
	fresh := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: ownServiceName,
			Labels: map[string]string{discoveryv1.LabelServiceName: ownServiceName},
		},
		AddressType: family,
	}
	return s.put(ctx, s.kinds.endpointSlice, fresh, func(obj api.Object) {
		slice := obj.(*discoveryv1.EndpointSlice)
		slice.Endpoints, slice.Ports = endpoints, ports
	})
}

// serviceKinds are the registrations of what Services are made of.
type serviceKinds struct {
	service, endpoints, endpointSlice, ipAddress, serviceCIDR, pod *api.Resource
}

func serviceKindsOf(kinds *api.Snapshot) serviceKinds {
	return serviceKinds{
		service:       kinds.Kind(corev1.SchemeGroupVersion.WithKind("Service")),
		endpoints:     kinds.Kind(corev1.SchemeGroupVersion.WithKind("Endpoints")),
		endpointSlice: kinds.Kind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice")),
		ipAddress:     kinds.Kind(networkingv1.SchemeGroupVersion.WithKind("IPAddress")),
		serviceCIDR:   kinds.Kind(networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR")),
		pod:           kinds.Kind(corev1.SchemeGroupVersion.WithKind("Pod")),
	}
}

// check refuses Services without that which they are made of.
func (k serviceKinds) check() error {
	if k.service != nil && !k.complete() {
		return fmt.Errorf("apiserver: the registry has Service, but not all of Endpoints, EndpointSlice, IPAddress, ServiceCIDR and Pod")
	}
	return nil
}

func (k serviceKinds) complete() bool {
	return k.service != nil && k.endpoints != nil && k.endpointSlice != nil && k.ipAddress != nil && k.serviceCIDR != nil && k.pod != nil
}
