package dns

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// index finds Services and endpoints by name and by address. A service in it is immutable: a change of a Service or of
// its EndpointSlices replaces it. It is safe for concurrent use.
type index struct {
	mu         sync.RWMutex
	services   map[string]*service // by "name.namespace", as in questions
	reverse    map[netip.Addr][]*endpoint
	namespaces map[string]struct{}
}

func newIndex() *index {
	return &index{services: map[string]*service{}, reverse: map[netip.Addr][]*endpoint{},
		namespaces: map[string]struct{}{}}
}

// service is the data behind a Service's name.
type service struct {
	key      string // "name.namespace"
	target   string // the fully qualified name of an ExternalName
	headless bool
	// v4 and v6 are the cluster IPs, or the addresses of the endpoints of a headless Service.
	v4, v6 []netip.Addr
	// srv has the named ports by "_port._protocol". protocols are the names above these, such as "_tcp".
	srv       map[string][]target
	protocols []string
	// endpoints are the endpoints with a name below the Service's, by the first label of that name.
	endpoints map[string]*endpoint
	// all has all endpoints, and for a Service with cluster IPs one without a hostname.
	all []*endpoint
}

// endpoint is a name below a Service's, or the Service itself if hostname is empty.
type endpoint struct {
	service  *service
	hostname string
	explicit bool // from the EndpointSlice, not derived from the address
	v4, v6   []netip.Addr
}

// target is the target of an SRV record.
type target struct {
	endpoint *endpoint
	port     uint16
}

// newService computes a service from a Service and its EndpointSlices, whose order does not matter.
func newService(svc *corev1.Service, slices []*discoveryv1.EndpointSlice) *service {
	s := &service{key: serviceKey(svc.Namespace, svc.Name)}
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		s.target = externalName(svc.Spec.ExternalName)
		return s
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		s.headless = true
	default:
		s.addClusterIPs(svc)
	}
	// publishNotReadyAddresses: "any agent which deals with endpoints for this Service should disregard any
	// indications of ready/not-ready" (API doc of ServiceSpec).
	s.addEndpoints(slices, svc.Spec.PublishNotReadyAddresses)
	s.finish()
	return s
}

func serviceKey(namespace, name string) string { return name + "." + namespace }

// externalName returns the fully qualified name of an ExternalName, or "" if it is not valid in DNS.
func externalName(name string) string {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	if !sendable(name) {
		return ""
	}
	return name + "."
}

func (s *service) addClusterIPs(svc *corev1.Service) {
	e := &endpoint{service: s}
	ips := svc.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{svc.Spec.ClusterIP}
	}
	for _, ip := range ips {
		e.add(ip)
	}
	s.all = append(s.all, e)
	s.v4, s.v6 = e.v4, e.v6
	for _, p := range svc.Spec.Ports {
		s.addPort(p.Name, p.Protocol, p.Port, e)
	}
}

// add adds an address as text, as the API has it. It ignores invalid ones.
func (e *endpoint) add(text string) {
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.Zone() != "" {
		return
	}
	if ip = ip.Unmap(); ip.Is4() {
		e.v4 = append(e.v4, ip)
	} else {
		e.v6 = append(e.v6, ip)
	}
}

// addPort adds an SRV record. Unnamed ports have none (specification, 2.3.2).
func (s *service) addPort(name string, protocol corev1.Protocol, port int32, e *endpoint) {
	if name == "" || port < 1 || port > 65535 {
		return
	}
	transport := "_" + strings.ToLower(string(cmp.Or(protocol, corev1.ProtocolTCP)))
	if s.srv == nil {
		s.srv = map[string][]target{}
	}
	key := "_" + strings.ToLower(name) + "." + transport
	s.srv[key] = append(s.srv[key], target{e, uint16(port)})
	if !slices.Contains(s.protocols, transport) && len(s.protocols) < 3 { // there are only TCP, UDP and SCTP
		s.protocols = append(s.protocols, transport)
	}
}

// addEndpoints adds the names of endpoints, and the addresses and ports of a headless Service. An endpoint without a
// ready condition counts as ready (API doc of EndpointConditions).
func (s *service) addEndpoints(all []*discoveryv1.EndpointSlice, unready bool) {
	for _, slice := range all {
		if slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		for i := range slice.Endpoints {
			one := &slice.Endpoints[i]
			if unready || ptr.Deref(one.Conditions.Ready, true) {
				s.addEndpoint(one, slice.Ports)
			}
		}
	}
}

func (s *service) addEndpoint(one *discoveryv1.Endpoint, ports []discoveryv1.EndpointPort) {
	// All addresses of an endpoint are fungible, and clients should take the first (API doc of Endpoint).
	if len(one.Addresses) == 0 {
		return
	}
	name, explicit := strings.ToLower(ptr.Deref(one.Hostname, "")), true
	if name == "" || !isLabel(name) {
		if !s.headless {
			return // several endpoints may share the address that would be its name
		}
		name, explicit = dashed(one.Addresses[0]), false
	}
	e := s.endpoints[name]
	if e == nil {
		e = &endpoint{service: s, hostname: name, explicit: explicit}
		if s.endpoints == nil {
			s.endpoints = map[string]*endpoint{}
		}
		s.endpoints[name] = e
		s.all = append(s.all, e)
	}
	e.add(one.Addresses[0])
	if !s.headless {
		return
	}
	for _, p := range ports {
		if p.Port != nil {
			s.addPort(ptr.Deref(p.Name, ""), ptr.Deref(p.Protocol, ""), *p.Port, e)
		}
	}
}

// dashed returns CoreDNS's name of an endpoint without a hostname.
func dashed(address string) string { return strings.NewReplacer(".", "-", ":", "-").Replace(address) }

// finish sorts addresses and targets, so that their order does not depend on the EndpointSlices, and removes
// duplicates.
func (s *service) finish() {
	for _, e := range s.all {
		e.v4, e.v6 = unique(e.v4), unique(e.v6)
		if s.headless {
			s.v4, s.v6 = append(s.v4, e.v4...), append(s.v6, e.v6...)
		}
	}
	if s.headless {
		s.v4, s.v6 = unique(s.v4), unique(s.v6)
	}
	for key, list := range s.srv {
		slices.SortFunc(list, func(a, b target) int {
			return cmp.Or(cmp.Compare(a.endpoint.hostname, b.endpoint.hostname), cmp.Compare(a.port, b.port))
		})
		s.srv[key] = slices.Clip(slices.Compact(list))
	}
}

func unique(list []netip.Addr) []netip.Addr {
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Clip(slices.Compact(list))
}

// exists reports whether the Service's name, or a name below it, has records. A headless Service without endpoints does
// not exist: "the answer should be NXDOMAIN" (specification, 2.4.1).
func (s *service) exists() bool {
	return s.target != "" || len(s.v4)+len(s.v6)+len(s.srv)+len(s.endpoints) > 0
}

// put replaces the service with a key; nil removes it.
func (x *index) put(key string, s *service) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if old := x.services[key]; old != nil {
		for _, e := range old.all {
			x.forget(e.v4, e)
			x.forget(e.v6, e)
		}
	}
	if s == nil {
		delete(x.services, key)
		return
	}
	x.services[key] = s
	for _, e := range s.all {
		for _, ip := range e.v4 {
			x.reverse[ip] = append(x.reverse[ip], e)
		}
		for _, ip := range e.v6 {
			x.reverse[ip] = append(x.reverse[ip], e)
		}
	}
}

func (x *index) forget(ips []netip.Addr, e *endpoint) {
	for _, ip := range ips {
		// Copy the list: a concurrent question may be reading the old one.
		left := make([]*endpoint, 0, len(x.reverse[ip]))
		for _, other := range x.reverse[ip] {
			if other != e {
				left = append(left, other)
			}
		}
		if len(left) == 0 {
			delete(x.reverse, ip)
		} else {
			x.reverse[ip] = left
		}
	}
}

// service returns the service with a key, or nil.
func (x *index) service(key string) *service {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.services[key]
}

// at returns the endpoints and Services that have an address.
func (x *index) at(ip netip.Addr) []*endpoint {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.reverse[ip]
}

func (x *index) hasNamespace(name string) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	_, has := x.namespaces[name]
	return has
}

func (x *index) setNamespace(name string, exists bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if exists {
		x.namespaces[name] = struct{}{}
	} else {
		delete(x.namespaces, name)
	}
}
