package controlplane

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
	"github.com/coxswain-dev/coxswain/storage"
)

// Clients inside a cluster find the API servers by the Service "kubernetes" in the namespace "default". Each server
// records its presence in etcd, under a time to live, and points the Endpoints and the EndpointSlice of the Service at
// all servers that are present, as kube-apiserver's lease reconciler does. A server that ends removes itself.

const (
	ownServiceName = "kubernetes"
	// Presences is the collection of the running servers, named by their addresses. It is not a kind of the API.
	Presences = "claims/apiservers"
	// presenceTTL is the time that the Service still points at a server that died.
	presenceTTL = 45 * time.Second
	// publishInterval is the interval for renewing a server's presence: kube-apiserver's for its identity Lease.
	publishInterval = 10 * time.Second
	// startPatience and endPatience limit the time that the start and the end of a server wait for publishing. If the
	// start gives up, there may be no Service kubernetes for an interval.
	startPatience, endPatience = 10 * time.Second, time.Second
	// ownServicePort is the Service's port.
	ownServicePort = 443
)

// advertised returns the address that other machines reach a server at: --advertise-address, the address that it is
// bound to, or the address of an interface. bound is the listener's. The result is invalid if there is none.
func (c *ControlPlane) advertised(bound netip.AddrPort) netip.AddrPort {
	ip := c.AdvertiseAddress
	if !ip.IsValid() {
		ip = bound.Addr().Unmap()
	}
	if ip.IsLoopback() || ip.IsUnspecified() { // Endpoints may not point there
		ip = HostAddress()
	}
	if c.AdvertiseLater {
		ip = netip.Addr{}
	}
	return netip.AddrPortFrom(ip, bound.Port())
}

// keepPublished renews this server's presence from time to time, until ctx ends.
func (c *ControlPlane) keepPublished(ctx context.Context) {
	publish := virtualtime.Heartbeat(c.Clock).NewTicker(publishInterval)
	defer publish.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-publish.C():
			c.logError(ctx, "cannot publish the Service kubernetes", c.publish(ctx, true))
		}
	}
}

// logError logs an error of an operation that will be repeated, unless ctx has ended.
func (c *ControlPlane) logError(ctx context.Context, message string, err error) {
	if err != nil && ctx.Err() == nil {
		c.Log.Warn(message, "err", err)
	}
}

// Join adds the server that listens at addr to the Service, and returns the address that clients reach it at. It must
// be called before Run.
func (c *ControlPlane) Join(ctx context.Context, addr net.Addr) netip.AddrPort {
	if bound, err := netip.ParseAddrPort(addr.String()); err == nil {
		c.address = c.advertised(bound)
	}
	c.identity = newIdentity(addr)
	c.publishOnce(ctx, true)
	return c.address
}

// Advertise changes the address that clients reach the server at, after Join. It is safe for concurrent use.
func (c *ControlPlane) Advertise(ctx context.Context, ip netip.Addr) {
	c.publishing.Lock()
	next := netip.AddrPortFrom(ip, c.address.Port())
	if next != c.address && c.address.IsValid() {
		c.former = c.address
	}
	c.address = next
	c.publishing.Unlock()
	c.publishOnce(ctx, true)
}

// Leave removes the server from the Service.
func (c *ControlPlane) Leave(ctx context.Context) { c.publishOnce(ctx, false) }

// publishOnce publishes at the start and at the end of a server, which wait for it for a limited time.
func (c *ControlPlane) publishOnce(ctx context.Context, present bool) {
	patience := endPatience
	if present {
		patience = startPatience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.publish(ctx, present); err != nil {
		c.Log.Warn("cannot publish the Service kubernetes", "err", err)
	}
}

// publish brings the Service, and the objects that point at the servers, up to date. All changes are written in one
// transaction; without changes, there is no write.
func (c *ControlPlane) publish(ctx context.Context, present bool) error {
	if c.service == nil {
		return nil
	}
	c.publishing.Lock()
	defer c.publishing.Unlock()
	for attempt := 1; ; attempt++ {
		writes, err := c.publication(ctx, present)
		if err == nil && len(writes) > 0 {
			_, err = c.Objects.Commit(ctx, writes...)
		}
		var lost *storage.Refusal
		if errors.As(err, &lost) && attempt < 5 {
			continue // another server or a user was quicker
		}
		if err == nil {
			c.former = netip.AddrPort{}
		}
		return err
	}
}

func (c *ControlPlane) publication(ctx context.Context, present bool) ([]storage.Write, error) {
	var writes []storage.Write
	address := c.address
	if present {
		cidr, err := c.defaultServiceCIDR(ctx)
		if err != nil {
			return nil, err
		}
		service, err := c.ownService(ctx, address.Port())
		if err != nil {
			return nil, err
		}
		own, err := c.ownObjects(ctx)
		if err != nil {
			return nil, err
		}
		writes = slices.Concat(cidr, service, own)
	}
	if !address.IsValid() {
		return writes, nil
	}
	presence, all, err := c.presence(ctx, address, present)
	if err != nil {
		return nil, err
	}
	writes = append(writes, presence...)
	endpoints, err := c.ownEndpoints(ctx, all)
	if err != nil {
		return nil, err
	}
	slice, err := c.ownEndpointSlice(ctx, all)
	return slices.Concat(writes, endpoints, slice), err
}

// defaultServiceCIDR shows --service-cluster-ip-range as an object. Its ranges stay as they were created, except that a
// second family may be added (KEP-1880).
func (c *ControlPlane) defaultServiceCIDR(ctx context.Context) ([]storage.Write, error) {
	var cidrs []string
	for _, c := range c.ServiceCIDRs {
		cidrs = append(cidrs, c.String())
	}
	return c.put(ctx, c.cidr,
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: ownServiceName}}, func(obj api.Object) {
			have := obj.(*networkingv1.ServiceCIDR)
			if n := len(have.Spec.CIDRs); n == 0 || n == 1 && len(cidrs) == 2 && cidrs[0] == have.Spec.CIDRs[0] {
				have.Spec.CIDRs = cidrs
			}
		})
}

// ownService creates the Service with the first address of the range, or sets its target port to this server's port.
func (c *ControlPlane) ownService(ctx context.Context, port uint16) ([]storage.Write, error) {
	ports := []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: ownServicePort,
		TargetPort: intstr.FromInt32(int32(port))}}
	fresh := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: ownServiceName,
		Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"},
	}}
	writes, err := c.put(ctx, c.service, fresh, func(obj api.Object) { obj.(*corev1.Service).Spec.Ports = ports })
	if err != nil || len(writes) == 0 || writes[0].Op == storage.Update {
		return writes, err
	}
	fresh.Spec.SessionAffinity = corev1.ServiceAffinityNone
	if first, free := c.Services.First(); free {
		fresh.Spec.ClusterIP, fresh.Spec.ClusterIPs = first, []string{first}
	}
	obj, reserves, err := c.Services.Allocate(ctx, fresh, nil)
	if err != nil {
		return nil, err
	}
	w, err := c.Objects.Create(c.service, obj)
	return append(reserves, w), err
}

// presence returns the write that records that the server at an address runs, or no longer runs. all are the servers
// that run after the write, sorted.
func (c *ControlPlane) presence(ctx context.Context, address netip.AddrPort,
	present bool) ([]storage.Write, []netip.AddrPort, error) {
	list, err := c.Store.Collection(Presences, storage.CollectionOptions{}).List(ctx, storage.ListRequest{})
	if err != nil {
		return nil, nil, err
	}
	key := storage.Key{Collection: Presences, Name: address.String()}
	value, err := json.Marshal(metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: key.Name}})
	if err != nil {
		return nil, nil, err
	}
	var writes []storage.Write
	write := storage.Write{Op: storage.Create, Key: key, Value: value, TTL: presenceTTL}
	if virtualtime.IsManual(c.Clock) {
		write.TTL = 0 // a day may pass between two renewals; such a server has no others beside it
	}
	var all []netip.AddrPort
	for _, o := range list.Items {
		if o.Key == key {
			write.Op, write.Expect = storage.Update, o.Revision
			continue
		}
		if o.Key.Name == c.former.String() {
			writes = append(writes, storage.Write{Op: storage.Delete, Key: o.Key, Expect: o.Revision})
			continue
		}
		if other, err := netip.ParseAddrPort(o.Key.Name); err == nil {
			all = append(all, other)
		}
	}
	if present {
		all = append(all, address)
	} else if write.Op == storage.Update {
		write.Op, write.Value, write.TTL = storage.Delete, nil, 0
	} else {
		return writes, all, nil
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return append(writes, write), all, nil
}

func (c *ControlPlane) ownEndpoints(ctx context.Context, all []netip.AddrPort) ([]storage.Write, error) {
	var subsets []corev1.EndpointSubset
	for _, server := range all {
		address, port := corev1.EndpointAddress{IP: server.Addr().String()}, int32(server.Port())
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
		Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}, // the server writes the slice itself
	}}
	return c.put(ctx, c.endpoints, fresh, func(obj api.Object) { obj.(*corev1.Endpoints).Subsets = subsets })
}

// ownEndpointSlice points to the servers that share the first one's family and port: a slice has one of each.
func (c *ControlPlane) ownEndpointSlice(ctx context.Context, all []netip.AddrPort) ([]storage.Write, error) {
	family := discoveryv1.AddressTypeIPv4
	var endpoints []discoveryv1.Endpoint
	var ports []discoveryv1.EndpointPort
	ready, https, tcp := true, "https", corev1.ProtocolTCP
	for i, server := range all {
		port := int32(server.Port())
		if i == 0 {
			if server.Addr().Is6() {
				family = discoveryv1.AddressTypeIPv6
			}
			ports = []discoveryv1.EndpointPort{{Name: &https, Port: &port, Protocol: &tcp}}
		}
		if server.Addr().Is6() == all[0].Addr().Is6() && server.Port() == all[0].Port() {
			endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{server.Addr().String()},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
		}
	}
	fresh := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: ownServiceName,
			Labels: map[string]string{discoveryv1.LabelServiceName: ownServiceName},
		},
		AddressType: family,
	}
	return c.put(ctx, c.endpointSlice, fresh, func(obj api.Object) {
		slice := obj.(*discoveryv1.EndpointSlice)
		slice.Endpoints, slice.Ports = endpoints, ports
	})
}
