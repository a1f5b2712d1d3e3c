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
	// firstRest is how long an unreachable endpoint is skipped; it doubles up to longestRest.
	firstRest   = time.Second
	longestRest = 30 * time.Second
)

// protocol is the protocol of an endpoint.
type protocol int

const (
	plainHTTP protocol = iota
	http2ClearText
	overTLS
)

// protocolOf parses the appProtocol of a Service's port: names of KEP-3726 and IANA.
func protocolOf(appProtocol *string) protocol {
	switch strings.ToLower(ptr.Deref(appProtocol, "")) {
	case "kubernetes.io/h2c", "h2c", "grpc":
		return http2ClearText
	case "https", "kubernetes.io/wss", "wss", "grpcs":
		return overTLS
	}
	return plainHTTP
}

// portKey identifies a port of a Service, as in Ingresses.
type portKey struct {
	namespace, service, port string
	number                   int32
}

func backendKey(namespace string, s *networkingv1.IngressServiceBackend) portKey {
	return portKey{namespace, s.Name, s.Port.Name, s.Port.Number}
}

// upstreams has the endpoints of all Service ports in Ingresses. It must be used by one goroutine; each upstream is
// safe for concurrent use.
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

// hold returns the upstream of a port for an Ingress. It is kept up to date until the last release.
func (s *upstreams) hold(key portKey, user types.NamespacedName) *upstream {
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
	u.users[user]++
	return u
}

// existing returns the upstream of a port, or nil if no Ingress holds it.
func (s *upstreams) existing(key portKey) *upstream { return s.byPort[key] }

// release reverts one hold.
func (s *upstreams) release(u *upstream, user types.NamespacedName) {
	if u == nil {
		return
	}
	if u.users[user]--; u.users[user] <= 0 {
		delete(u.users, user)
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
	users map[types.NamespacedName]int // Ingresses with their number of holds; only for the goroutine of upstreams
	now   atomic.Pointer[backends]
}

// backends are an upstream's endpoints at one time. They are immutable.
type backends struct {
	endpoints []*endpoint
	protocol  protocol
	rejected  string // why there are none, if the Service is the cause
}

// endpoint is the address of a backend. Its object persists as long as its upstream has the address.
type endpoint struct {
	address string // host:port

	outstanding atomic.Int64 // requests in progress
	failures    atomic.Int32 // failed connections since the last success
	restsUntil  atomic.Int64 // in nanoseconds of the clock; 0 if it does not rest
}

// update resolves an upstream's endpoints again, and keeps the state of known ones.
func (u *upstream) update(service *corev1.Service, slices []*discoveryv1.EndpointSlice) {
	b := resolve(u.key, service, slices)
	former := map[string]*endpoint{}
	for _, e := range u.now.Load().endpoints {
		former[e.address] = e
	}
	for i, e := range b.endpoints {
		if k := former[e.address]; k != nil {
			b.endpoints[i] = k
		}
	}
	u.now.Store(b)
}

// resolve returns the endpoints of a Service's port: the ready ones; if none is ready, terminating ones that still
// serve (KEP-1669).
func resolve(key portKey, service *corev1.Service, endpointSlices []*discoveryv1.EndpointSlice) *backends {
	if service == nil {
		return &backends{rejected: "there is no such Service"}
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		// Its name may resolve to any address, even one that only this process can reach.
		return &backends{rejected: "Services of type ExternalName are not served"}
	}
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return key.port != "" && p.Name == key.port || key.port == "" && p.Port == key.number
	})
	if i < 0 {
		return &backends{rejected: "the Service has no such port"}
	}
	port := &service.Spec.Ports[i]
	if port.Protocol != "" && port.Protocol != corev1.ProtocolTCP {
		return &backends{rejected: "the Service's port is not a TCP port"}
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
			if len(e.Addresses) > 0 && mayBeEndpoint(e.Addresses[0]) { // the others are the same pod's (API doc)
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

// slicePort returns the number of a slice's port by its name, or "".
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

// mayBeEndpoint rejects the addresses that the API server rejects in EndpointSlices: they lead to this machine, or to a
// cloud's metadata.
func mayBeEndpoint(address string) bool {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	ip = ip.Unmap()
	return !ip.IsLoopback() && !ip.IsUnspecified() && !ip.IsMulticast() && !ip.IsLinkLocalUnicast()
}

// pick chooses an endpoint: of two random ones, the one with fewer requests in progress. It skips endpoints in tried,
// and resting ones as long as there are others. It returns nil if none is left.
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

// failed makes an unreachable endpoint rest.
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
