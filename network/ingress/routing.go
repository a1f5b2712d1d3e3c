package ingress

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxPath limits a rule's path; no browser or server uses longer ones.
	maxPath = 2048
	// maxNamed limits the items of a list in an Event.
	maxNamed = 5
)

// route is the target of requests for one host and path.
type route struct {
	ingress  types.NamespacedName
	host     string // as in the rule
	path     string
	service  string
	upstream *upstream // nil if the backend is rejected
	redirect bool      // redirect HTTP to HTTPS
	settings *settings
}

// pathRule is a host and path in an Ingress.
type pathRule struct {
	exact bool
	path  string // without the trailing slash, unless exact
	route *route
}

// entry is an Ingress in parsed form.
type entry struct {
	ingress *networkingv1.Ingress
	key     types.NamespacedName
	rules   map[string][]pathRule // by host; an empty list has only the default backend
	// fallback is spec.defaultBackend, or nil.
	fallback *networkingv1.IngressBackend
	tls      map[string]secret // by host
	settings *settings
	// upstreams are held, each once per item.
	upstreams []*upstream
	problems  []string // errors in the object itself
	conflicts string   // the rules that older Ingresses override, as in the last Event
	reported  string   // the problems, as in the last Event
}

// secret is a Secret of an Ingress's namespace, with the state of its certificate.
type secret struct {
	name        string
	certificate *certificate
}

// older compares Ingresses by precedence: the one that was created first comes first, then by namespace and name.
func older(a, b *entry) int {
	return cmp.Or(a.ingress.CreationTimestamp.Compare(b.ingress.CreationTimestamp.Time),
		cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name))
}

// routing has the rules of all Ingresses, by host, and builds the routing table from them. The cost of a change is the
// cost of the affected hosts, plus two copies of maps. It must be used by one goroutine.
type routing struct {
	hostPerNamespace bool // a host belongs to one namespace
	upstreams        *upstreams
	secrets          secretSource

	entries map[types.NamespacedName]*entry
	hosts   map[string]map[*entry]bool // by the hosts of rules
	tls     map[string]map[*entry]bool // by the hosts of certificates
	rest    map[*entry]bool            // Ingresses with a default backend and no rules

	dirty   map[string]bool // hosts with an outdated virtual host
	changed map[*entry]bool // Ingresses on them
	table   *table
}

// secretSource provides the certificates of Secrets. A Secret is watched while it is held.
type secretSource interface {
	hold(key, user types.NamespacedName) *certificate
	release(key, user types.NamespacedName)
}

func newRouting(u *upstreams, s secretSource, hostPerNamespace bool) *routing {
	return &routing{
		hostPerNamespace: hostPerNamespace, upstreams: u, secrets: s, entries: map[types.NamespacedName]*entry{},
		hosts: map[string]map[*entry]bool{}, tls: map[string]map[*entry]bool{}, rest: map[*entry]bool{},
		dirty: map[string]bool{}, changed: map[*entry]bool{},
		table: &table{hosts: map[string]*virtualHost{}, certs: map[string]*certificate{}},
	}
}

// set adds an Ingress or replaces it.
func (b *routing) set(ingress *networkingv1.Ingress) {
	key := types.NamespacedName{Namespace: ingress.Namespace, Name: ingress.Name}
	old := b.entries[key]
	e := b.read(key, ingress)
	if old != nil && old.ingress.UID == ingress.UID {
		e.conflicts, e.reported = old.conflicts, old.reported
	}
	b.drop(old) // after read, so that objects in use by both are not released in between
	b.entries[key] = e
	b.changed[e] = true
	for host := range e.rules {
		put(b.hosts, host, e)
		b.dirty[host] = true
	}
	for host := range e.tls {
		put(b.tls, host, e)
		b.dirty[host] = true
	}
	if e.fallback != nil && len(e.rules) == 0 {
		b.rest[e] = true
	}
}

// remove removes an Ingress.
func (b *routing) remove(key types.NamespacedName) {
	b.drop(b.entries[key])
	delete(b.entries, key)
}

func (b *routing) drop(e *entry) {
	if e == nil {
		return
	}
	for _, u := range e.upstreams {
		b.upstreams.release(u, e.key)
	}
	for host := range e.rules {
		take(b.hosts, host, e)
		b.dirty[host] = true
	}
	for host, secret := range e.tls {
		b.secrets.release(types.NamespacedName{Namespace: e.key.Namespace, Name: secret.name}, e.key)
		take(b.tls, host, e)
		b.dirty[host] = true
	}
	delete(b.rest, e)
	delete(b.changed, e)
}

func put(m map[string]map[*entry]bool, host string, e *entry) {
	if m[host] == nil {
		m[host] = map[*entry]bool{}
	}
	m[host][e] = true
}

func take(m map[string]map[*entry]bool, host string, e *entry) {
	delete(m[host], e)
	if len(m[host]) == 0 {
		delete(m, host)
	}
}

// read parses an Ingress, and holds all objects that it refers to.
func (b *routing) read(key types.NamespacedName, ingress *networkingv1.Ingress) *entry {
	e := &entry{ingress: ingress, key: key, rules: map[string][]pathRule{}, tls: map[string]secret{}}
	s, warnings := parseSettings(ingress.Annotations)
	e.settings, e.problems = &s, warnings
	for i := range ingress.Spec.TLS {
		b.readTLS(e, &ingress.Spec.TLS[i])
	}
	if d := ingress.Spec.DefaultBackend; d != nil {
		e.fallback = d
		b.upstreamOf(e, d)
	}
	for i := range ingress.Spec.Rules {
		b.readRule(e, &ingress.Spec.Rules[i])
	}
	return e
}

// readTLS records the Secret of each host. Without a list of hosts, it applies to the hosts of the rules.
func (b *routing) readTLS(e *entry, t *networkingv1.IngressTLS) {
	if t.SecretName == "" {
		return // the default certificate applies
	}
	hosts := t.Hosts
	if len(hosts) == 0 {
		for _, rule := range e.ingress.Spec.Rules {
			hosts = append(hosts, rule.Host)
		}
	}
	for _, host := range hosts {
		host = strings.ToLower(host)
		if _, twice := e.tls[host]; twice || host == "" {
			continue
		}
		key := types.NamespacedName{Namespace: e.key.Namespace, Name: t.SecretName}
		e.tls[host] = secret{t.SecretName, b.secrets.hold(key, e.key)}
	}
}

func (b *routing) readRule(e *entry, rule *networkingv1.IngressRule) {
	host := strings.ToLower(rule.Host)
	rules := e.rules[host]
	e.rules[host] = rules // even without paths: the host's requests go to the default backend
	if rule.HTTP == nil {
		return
	}
	secure := e.settings.redirect && coveredByTLS(e.ingress.Spec.TLS, host)
	for i := range rule.HTTP.Paths {
		p := &rule.HTTP.Paths[i]
		if len(p.Path) > maxPath {
			e.problems = append(e.problems, fmt.Sprintf("path %.40q… is longer than %d bytes", p.Path, maxPath))
			continue
		}
		c := pathRule{path: cmp.Or(p.Path, "/"), route: &route{ingress: e.key, host: host, path: cmp.Or(p.Path, "/"),
			settings: e.settings, redirect: secure}}
		c.exact = p.PathType != nil && *p.PathType == networkingv1.PathTypeExact
		if !c.exact {
			c.path = strings.TrimSuffix(c.path, "/")
		}
		c.route.service, c.route.upstream = b.upstreamOf(e, &p.Backend)
		rules = append(rules, c)
	}
	e.rules[host] = rules
}

// coveredByTLS reports whether an Ingress has TLS for a host, with a Secret or with the default certificate.
func coveredByTLS(tls []networkingv1.IngressTLS, host string) bool {
	return slices.ContainsFunc(tls, func(t networkingv1.IngressTLS) bool {
		return len(t.Hosts) == 0 || slices.ContainsFunc(t.Hosts, func(h string) bool {
			h = strings.ToLower(h)
			return h == host || h == wildcardOf(host)
		})
	})
}

// upstreamOf holds the endpoints of a backend. It returns nil for a backend that is rejected.
func (b *routing) upstreamOf(e *entry, backend *networkingv1.IngressBackend) (service string, u *upstream) {
	if backend.Service == nil {
		e.problems = append(e.problems, "resource backends are not supported; their requests get 503")
		return "", nil
	}
	u = b.upstreams.hold(backendKey(e.key.Namespace, backend.Service), e.key)
	e.upstreams = append(e.upstreams, u)
	return backend.Service.Name, u
}

// commit rebuilds outdated virtual hosts and returns the new table.
func (b *routing) commit() *table {
	if len(b.dirty) > 0 {
		t := &table{hosts: maps.Clone(b.table.hosts), certs: maps.Clone(b.table.certs)}
		for host := range b.dirty {
			set(t.hosts, host, b.virtualHost(host))
			set(t.certs, host, b.certificate(host))
		}
		b.table = t
		clear(b.dirty)
	}
	if fallback := b.fallback(); !sameTarget(fallback, b.table.fallback) {
		t := *b.table
		t.fallback = fallback
		b.table = &t
	}
	return b.table
}

func set[V any](m map[string]*V, key string, value *V) {
	if value == nil {
		delete(m, key)
		return
	}
	m[key] = value
}

func sameTarget(a, b *route) bool {
	return a == b || a != nil && b != nil && a.ingress == b.ingress && a.upstream == b.upstream &&
		*a.settings == *b.settings
}

// virtualHost builds the routing of a host, or nil if no Ingress has a rule for it. If two Ingresses have the same
// path, the older one wins.
func (b *routing) virtualHost(host string) *virtualHost {
	if len(b.hosts[host]) == 0 {
		return nil
	}
	exact, prefixes := map[string]*route{}, map[string]*route{}
	var fallback *route
	var owner string
	for i, e := range inOrder(b.hosts[host]) {
		if i == 0 {
			owner = e.key.Namespace
		}
		b.changed[e] = true
		if b.hostPerNamespace && e.key.Namespace != owner {
			continue
		}
		for _, c := range e.rules[host] {
			m := prefixes
			if c.exact {
				m = exact
			}
			if m[c.path] == nil {
				m[c.path] = c.route
			}
		}
		if fallback == nil && e.fallback != nil {
			fallback = b.defaultRoute(e, host)
		}
	}
	return newVirtualHost(exact, prefixes, fallback)
}

// defaultRoute returns the route of an Ingress's default backend.
func (b *routing) defaultRoute(e *entry, host string) *route {
	r := &route{ingress: e.key, host: host, settings: e.settings}
	r.redirect = host != "" && e.settings.redirect && coveredByTLS(e.ingress.Spec.TLS, host)
	if s := e.fallback.Service; s != nil {
		r.service, r.upstream = s.Name, b.upstreams.existing(backendKey(e.key.Namespace, s))
	}
	return r
}

// fallback returns the route for requests without a matching rule.
func (b *routing) fallback() *route {
	var oldest *entry
	for e := range b.rest {
		if oldest == nil || older(e, oldest) < 0 {
			oldest = e
		}
	}
	if oldest == nil {
		return nil
	}
	return b.defaultRoute(oldest, "")
}

// certificate returns the certificate of a host: the one of the oldest Ingress with one.
func (b *routing) certificate(host string) *certificate {
	var oldest *entry
	for e := range b.tls[host] {
		if oldest == nil || older(e, oldest) < 0 {
			oldest = e
		}
	}
	if oldest == nil {
		return nil
	}
	return oldest.tls[host].certificate
}

func inOrder(entries map[*entry]bool) []*entry {
	return slices.SortedFunc(maps.Keys(entries), older)
}

// warning is an Event for the owner of an Ingress.
type warning struct {
	ingress         *networkingv1.Ingress
	reason, message string
}

// warnings returns new problems of Ingresses since the last call. The table must be up to date.
func (b *routing) warnings() []warning {
	var all []warning
	for e := range b.changed {
		conflicts := b.conflicts(e)
		if conflicts != e.conflicts && conflicts != "" {
			all = append(all, warning{e.ingress, "Conflict", conflicts})
		}
		problems := few(slices.Concat(e.problems, e.rejections(), e.uncovered()))
		if problems != e.reported && problems != "" {
			all = append(all, warning{e.ingress, "Invalid", problems})
		}
		e.conflicts, e.reported = conflicts, problems
	}
	clear(b.changed)
	return all
}

// rejections describes the backends of an Ingress that are not served.
func (e *entry) rejections() []string {
	var all []string
	for _, u := range e.upstreams {
		if reason := u.now.Load().rejected; reason != "" {
			all = append(all, fmt.Sprintf("backend %s: %s", u.key.service, reason))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// uncovered describes the hosts for which the certificate of the Ingress's Secret is not valid.
func (e *entry) uncovered() []string {
	var all []string
	for host, s := range e.tls {
		if s.certificate.now.Load() != nil && s.certificate.covering(host) == nil {
			all = append(all, fmt.Sprintf("the certificate in Secret %s is not valid for %s", s.name, host))
		}
	}
	slices.Sort(all)
	return all
}

// reconsider makes the next call of warnings check the Ingresses that use an upstream or a certificate.
func (b *routing) reconsider(users map[types.NamespacedName]int) {
	for key := range users {
		if e := b.entries[key]; e != nil {
			b.changed[e] = true
		}
	}
}

// conflicts describes the rules of an Ingress that an older one overrides.
func (b *routing) conflicts(e *entry) string {
	var texts []string
	for host, rules := range e.rules {
		s := b.table.hosts[host]
		for _, c := range rules {
			if s == nil {
				continue
			}
			if holder := s.holder(c); holder != e.key {
				owner := "an older Ingress of another namespace" // do not reveal its name to other namespaces
				if holder.Namespace == e.key.Namespace {
					owner = "Ingress " + holder.Name
				}
				texts = append(texts, fmt.Sprintf("%s%s is served by %s", host, c.route.path, owner))
			}
		}
	}
	slices.Sort(texts)
	return few(texts)
}

// holder returns the Ingress that owns a rule's path.
func (s *virtualHost) holder(c pathRule) types.NamespacedName {
	var r *route
	if c.exact {
		r = s.exact[c.path]
	} else if i, ok := slices.BinarySearchFunc(s.prefixes, c.path, func(p prefix, t string) int {
		return comparePaths(p.path, t)
	}); ok {
		r = s.prefixes[i].route
	}
	if r == nil {
		return types.NamespacedName{} // the host belongs to another namespace
	}
	return r.ingress
}

// few joins the first items of a list, for an Event.
func few(list []string) string {
	if n := len(list); n > maxNamed {
		return fmt.Sprintf("%s; and %d more", strings.Join(list[:maxNamed], "; "), n-maxNamed)
	}
	return strings.Join(list, "; ")
}
