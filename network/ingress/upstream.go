package ingress

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const (
	// firstRest is how long an endpoint is passed over that could not be reached; it doubles up to longestRest.
	firstRest   = time.Second
	longestRest = 30 * time.Second
)

// protocol is how an endpoint is spoken to.
type protocol int

const (
	plainHTTP protocol = iota
	http2ClearText
	overTLS
)

// protocolOf reads the appProtocol of a Service's port: KEP-3726's names, and IANA's.
func protocolOf(appProtocol *string) protocol {
	switch strings.ToLower(ptr.Deref(appProtocol, "")) {
	case "kubernetes.io/h2c", "h2c", "grpc":
		return http2ClearText
	case "https", "kubernetes.io/wss", "wss", "grpcs":
		return overTLS
	}
	return plainHTTP
}

// portKey is a port of a Service, as Ingresses name it.
type portKey struct {
	namespace, service, port string
	number                   int32
}

func backendKey(namespace string, s *networkingv1.IngressServiceBackend) portKey {
	return portKey{namespace, s.Name, s.Port.Name, s.Port.Number}
}

// upstreams are the endpoints of all ports of Services that Ingresses name. They belong to one goroutine; the
// upstreams in it are safe for concurrent use.
type upstreams struct {
	byPort    map[portKey]*upstream
	byService map[types.NamespacedName]map[*upstream]bool
	// resolve looks up the endpoints of a new upstream.
	resolve func(*upstream)
}

func newUpstreams() *upstreams {
	return &upstreams{byPort: map[portKey]*upstream{}, byService: map[types.NamespacedName]map[*upstream]bool{},
		resolve: func(*upstream) {}}
}

func (k portKey) serviceKey() types.NamespacedName {
	return types.NamespacedName{Namespace: k.namespace, Name: k.service}
}

// hold returns the upstream of a port, which is kept up to date while an Ingress holds it.
func (s *upstreams) hold(key portKey, by types.NamespacedName) *upstream {
	u := s.byPort[key]
	if u == nil {
		u = &upstream{key: key, users: map[types.NamespacedName]int{}}
		u.now.Store(&backends{})
		s.byPort[key] = u
		if s.byService[key.serviceKey()] == nil {
			s.byService[key.serviceKey()] = map[*upstream]bool{}
		}
		s.byService[key.serviceKey()][u] = true
		s.resolve(u)
	}
	u.users[by]++
	return u
}

// existing returns the upstream of a port that is held; nil otherwise.
func (s *upstreams) existing(key portKey) *upstream { return s.byPort[key] }

// release undoes one hold.
func (s *upstreams) release(u *upstream, by types.NamespacedName) {
	if u == nil {
		return
	}
	if u.users[by]--; u.users[by] <= 0 {
		delete(u.users, by)
	}
	if len(u.users) > 0 {
		return
	}
	delete(s.byPort, u.key)
	service := u.key.serviceKey()
	delete(s.byService[service], u)
	if len(s.byService[service]) == 0 {
		delete(s.byService, service)
	}
}

// upstream is a port of a Service and its endpoints.
type upstream struct {
	key   portKey
	users map[types.NamespacedName]int // Ingresses, and how often each holds it; of the goroutine of upstreams
	now   atomic.Pointer[backends]
}

// backends are an upstream's endpoints at one time. They do not change.
type backends struct {
	endpoints []*endpoint
	protocol  protocol
	refused   string // why there are none, where that is the Service's doing
}

// endpoint is an address that requests are sent to. It is the same one as long as its upstream has the address.
type endpoint struct {
	address string // host:port

	outstanding atomic.Int64 // requests that have not ended
	failures    atomic.Int32 // to connect, since the last success
	restsUntil  atomic.Int64 // nanoseconds of the clock; 0 where it does not rest
}

// update looks up an upstream's endpoints.
func (u *upstream) update(service *corev1.Service, slices []*discoveryv1.EndpointSlice) {
	b := resolve(u.key, service, slices)
	known := map[string]*endpoint{}
	for _, e := range u.now.Load().endpoints {
		known[e.address] = e
	}
	for i, e := range b.endpoints {
		if k := known[e.address]; k != nil {
			b.endpoints[i] = k
		}
	}
	u.now.Store(b)
}

// resolve finds the endpoints of a Service's port: those that are ready; where none is, those that still serve while
// they terminate (KEP-1669).
func resolve(key portKey, service *corev1.Service, endpointSlices []*discoveryv1.EndpointSlice) *backends {
	if service == nil {
		return &backends{refused: "there is no such Service"}
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		// Its name may lead anywhere, also to what only this process can reach.
		return &backends{refused: "Services of type ExternalName are not served"}
	}
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return key.port != "" && p.Name == key.port || key.port == "" && p.Port == key.number
	})
	if i < 0 {
		return &backends{refused: "the Service has no such port"}
	}
	port := &service.Spec.Ports[i]
	if port.Protocol != "" && port.Protocol != corev1.ProtocolTCP {
		return &backends{refused: "the Service's port is not a TCP port"}
	}
	ready, terminating := map[string]bool{}, map[string]bool{}
	for _, s := range endpointSlices {
		number := slicePort(s, port.Name)
		if number == "" {
			continue
		}
		for j := range s.Endpoints {
			e := &s.Endpoints[j]
			c := e.Conditions
			into := ready
			if !ptr.Deref(c.Ready, true) {
				if !ptr.Deref(c.Serving, false) || !ptr.Deref(c.Terminating, false) {
					continue
				}
				into = terminating
			}
			if len(e.Addresses) > 0 && mayBeEndpoint(e.Addresses[0]) { // the others are the same pod (API doc)
				into[joinPort(e.Addresses[0], number)] = true
			}
		}
	}
	if len(ready) == 0 {
		ready = terminating
	}
	b := &backends{protocol: protocolOf(port.AppProtocol)}
	for _, address := range slices.Sorted(maps.Keys(ready)) {
		b.endpoints = append(b.endpoints, &endpoint{address: address})
	}
	return b
}

// slicePort is the number of a slice's port by its name; "" where it has none.
func slicePort(s *discoveryv1.EndpointSlice, name string) string {
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		return ""
	}
	for _, p := range s.Ports {
		if ptr.Deref(p.Name, "") == name && p.Port != nil &&
			cmp.Or(ptr.Deref(p.Protocol, ""), corev1.ProtocolTCP) == corev1.ProtocolTCP {
			return strconv.Itoa(int(*p.Port))
		}
	}
	return ""
}

func joinPort(address, port string) string {
	if strings.Contains(address, ":") {
		return "[" + address + "]:" + port
	}
	return address + ":" + port
}

// mayBeEndpoint keeps out the addresses that the API server refuses in EndpointSlices: they lead to this machine, or to
// a cloud's metadata.
func mayBeEndpoint(address string) bool {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	ip = ip.Unmap()
	return !ip.IsLoopback() && !ip.IsUnspecified() && !ip.IsMulticast() && !ip.IsLinkLocalUnicast()
}

// pick chooses an endpoint: of two random ones, that with fewer requests outstanding. Endpoints in tried are left out,
// and those that rest as long as there are others. It returns nil where none is left.
func (b *backends) pick(now int64, tried []*endpoint) *endpoint {
	for _, resting := range []bool{false, true} {
		first := b.from(rand.IntN(max(1, len(b.endpoints))), now, tried, nil, resting)
		if first == nil {
			continue
		}
		second := b.from(rand.IntN(len(b.endpoints)), now, tried, first, resting)
		if second != nil && second.outstanding.Load() < first.outstanding.Load() {
			return second
		}
		return first
	}
	return nil
}

// from returns the first usable endpoint from an index on.
func (b *backends) from(start int, now int64, tried []*endpoint, other *endpoint, resting bool) *endpoint {
	for i := range b.endpoints {
		e := b.endpoints[(start+i)%len(b.endpoints)]
		if e != other && !slices.Contains(tried, e) && (resting || e.restsUntil.Load() <= now) {
			return e
		}
	}
	return nil
}

// failed has an endpoint rest that could not be reached.
func (e *endpoint) failed(now int64) {
	rest := longestRest
	if n := e.failures.Add(1); n <= 5 {
		rest = min(rest, firstRest<<(n-1))
	}
	e.restsUntil.Store(now + int64(rest))
}

// reached ends an endpoint's rest.
func (e *endpoint) reached() {
	if e.failures.Load() != 0 {
		e.failures.Store(0)
		e.restsUntil.Store(0)
	}
}
