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
	// maxPath bounds a rule's path; no browser or server uses longer ones.
	maxPath = 2048
	// maxNamed bounds how many of a list are named in an Event.
	maxNamed = 5
)

// route is where requests for one host and path go.
type route struct {
	ingress  types.NamespacedName
	host     string // as the rule has it
	path     string
	service  string
	upstream *upstream // nil where the backend is refused
	redirect bool      // HTTP is redirected to HTTPS
	settings *settings
}

// claim is a host and path that an Ingress wants.
type claim struct {
	exact bool
	path  string // without the trailing slash, unless it is exact
	route *route
}

// entry is an Ingress as it was read.
type entry struct {
	ingress *networkingv1.Ingress
	key     types.NamespacedName
	claims  map[string][]claim // by host; an empty list has the default backend alone
	// fallback is spec.defaultBackend; nil where there is none.
	fallback *networkingv1.IngressBackend
	tls      map[string]secret // by host
	settings *settings
	// upstreams are held, each as often as it is here.
	upstreams []*upstream
	problems  []string // what is wrong with the object itself
	lost      string   // the claims that older Ingresses have, as the last Event named them
	reported  string   // the problems, as the last Event named them
}

// secret is one that an Ingress names, of its namespace, and what is known of the certificate in it.
type secret struct {
	name        string
	certificate *certificate
}

// older reports which of two Ingresses has its claims first: that which was created first, then by namespace and name.
func older(a, b *entry) int {
	return cmp.Or(a.ingress.CreationTimestamp.Compare(b.ingress.CreationTimestamp.Time),
		cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name))
}

// book has the claims of all Ingresses, by host, and makes the routing table of them. A change costs what the hosts
// that it touches cost, and two copies of maps. It belongs to one goroutine.
type book struct {
	strict    bool // a host belongs to one namespace
	upstreams *upstreams
	secrets   secretSource

	entries map[types.NamespacedName]*entry
	hosts   map[string]map[*entry]bool // by the hosts of rules
	tls     map[string]map[*entry]bool // by the hosts of certificates
	rest    map[*entry]bool            // those with a default backend and no rules

	dirty   map[string]bool // hosts whose site is out of date
	changed map[*entry]bool // Ingresses on them
	table   *table
}

// secretSource gives the certificates of Secrets. A Secret is watched while it is held.
type secretSource interface {
	hold(key, by types.NamespacedName) *certificate
	release(key, by types.NamespacedName)
}

func newBook(u *upstreams, s secretSource, strict bool) *book {
	return &book{
		strict: strict, upstreams: u, secrets: s, entries: map[types.NamespacedName]*entry{},
		hosts: map[string]map[*entry]bool{}, tls: map[string]map[*entry]bool{}, rest: map[*entry]bool{},
		dirty: map[string]bool{}, changed: map[*entry]bool{},
		table: &table{sites: map[string]*site{}, certs: map[string]*certificate{}},
	}
}

// set takes up an Ingress, in place of what was known of it.
func (b *book) set(ingress *networkingv1.Ingress) {
	key := types.NamespacedName{Namespace: ingress.Namespace, Name: ingress.Name}
	old := b.entries[key]
	e := b.read(key, ingress)
	if old != nil && old.ingress.UID == ingress.UID {
		e.lost, e.reported = old.lost, old.reported
	}
	b.drop(old) // after read, so that what both use is not let go in between
	b.entries[key] = e
	b.changed[e] = true
	for host := range e.claims {
		put(b.hosts, host, e)
		b.dirty[host] = true
	}
	for host := range e.tls {
		put(b.tls, host, e)
		b.dirty[host] = true
	}
	if e.fallback != nil && len(e.claims) == 0 {
		b.rest[e] = true
	}
}

// remove forgets an Ingress.
func (b *book) remove(key types.NamespacedName) {
	b.drop(b.entries[key])
	delete(b.entries, key)
}

func (b *book) drop(e *entry) {
	if e == nil {
		return
	}
	for _, u := range e.upstreams {
		b.upstreams.release(u, e.key)
	}
	for host := range e.claims {
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

// read makes an entry of an Ingress, and holds what it refers to.
func (b *book) read(key types.NamespacedName, ingress *networkingv1.Ingress) *entry {
	e := &entry{ingress: ingress, key: key, claims: map[string][]claim{}, tls: map[string]secret{}}
	s, complaints := parseSettings(ingress.Annotations)
	e.settings, e.problems = &s, complaints
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

// readTLS notes the Secret of each host. Where no hosts are listed, it is for those of the rules.
func (b *book) readTLS(e *entry, t *networkingv1.IngressTLS) {
	if t.SecretName == "" {
		return // the default certificate
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

func (b *book) readRule(e *entry, rule *networkingv1.IngressRule) {
	host := strings.ToLower(rule.Host)
	claims := e.claims[host]
	e.claims[host] = claims // without paths, too: the host's requests are for the default backend
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
		c := claim{path: cmp.Or(p.Path, "/"), route: &route{ingress: e.key, host: host, path: cmp.Or(p.Path, "/"),
			settings: e.settings, redirect: secure}}
		c.exact = p.PathType != nil && *p.PathType == networkingv1.PathTypeExact
		if !c.exact {
			c.path = strings.TrimSuffix(c.path, "/")
		}
		c.route.service, c.route.upstream = b.upstreamOf(e, &p.Backend)
		claims = append(claims, c)
	}
	e.claims[host] = claims
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

// upstreamOf holds the endpoints of a backend; nil for a backend that is refused.
func (b *book) upstreamOf(e *entry, backend *networkingv1.IngressBackend) (service string, u *upstream) {
	if backend.Service == nil {
		e.problems = append(e.problems, "resource backends are not supported; their requests get 503")
		return "", nil
	}
	u = b.upstreams.hold(backendKey(e.key.Namespace, backend.Service), e.key)
	e.upstreams = append(e.upstreams, u)
	return backend.Service.Name, u
}

// commit builds the sites that are out of date and returns the new table.
func (b *book) commit() *table {
	if len(b.dirty) > 0 {
		t := &table{sites: maps.Clone(b.table.sites), certs: maps.Clone(b.table.certs)}
		for host := range b.dirty {
			set(t.sites, host, b.site(host))
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

// site builds the routing of a host; nil where no Ingress has a rule for it. Of two Ingresses that want the same path,
// the older has it.
func (b *book) site(host string) *site {
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
		if b.strict && e.key.Namespace != owner {
			continue
		}
		for _, c := range e.claims[host] {
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
	return newSite(exact, prefixes, fallback)
}

// defaultRoute is the route of an Ingress's default backend.
func (b *book) defaultRoute(e *entry, host string) *route {
	r := &route{ingress: e.key, host: host, settings: e.settings}
	r.redirect = host != "" && e.settings.redirect && coveredByTLS(e.ingress.Spec.TLS, host)
	if s := e.fallback.Service; s != nil {
		r.service, r.upstream = s.Name, b.upstreams.existing(backendKey(e.key.Namespace, s))
	}
	return r
}

// fallback is where requests go that no Ingress has a rule for.
func (b *book) fallback() *route {
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

// certificate is that of a host: the one that the oldest Ingress names.
func (b *book) certificate(host string) *certificate {
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

// complaint is what an Ingress's owner should know.
type complaint struct {
	ingress         *networkingv1.Ingress
	reason, message string
}

// complaints are what has become wrong with Ingresses since the last call. The table must be up to date.
func (b *book) complaints() []complaint {
	var all []complaint
	for e := range b.changed {
		lost := b.losses(e)
		if lost != e.lost && lost != "" {
			all = append(all, complaint{e.ingress, "Conflict", lost})
		}
		problems := few(slices.Concat(e.problems, e.refusals(), e.uncovered()))
		if problems != e.reported && problems != "" {
			all = append(all, complaint{e.ingress, "Invalid", problems})
		}
		e.lost, e.reported = lost, problems
	}
	clear(b.changed)
	return all
}

// refusals describes the backends of an Ingress that are not served.
func (e *entry) refusals() []string {
	var all []string
	for _, u := range e.upstreams {
		if why := u.now.Load().refused; why != "" {
			all = append(all, fmt.Sprintf("backend %s: %s", u.key.service, why))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// uncovered describes the hosts that are not served the certificate which the Ingress names for them.
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

// reconsider has the next call of complaints look at the Ingresses that use an upstream or a certificate.
func (b *book) reconsider(users map[types.NamespacedName]int) {
	for key := range users {
		if e := b.entries[key]; e != nil {
			b.changed[e] = true
		}
	}
}

// losses describes the claims of an Ingress that an older one has.
func (b *book) losses(e *entry) string {
	var lost []string
	for host, claims := range e.claims {
		s := b.table.sites[host]
		for _, c := range claims {
			if s == nil {
				continue
			}
			if holder := s.holder(c); holder != e.key {
				by := "an older Ingress of another namespace" // its name is not this one's to know
				if holder.Namespace == e.key.Namespace {
					by = "Ingress " + holder.Name
				}
				lost = append(lost, fmt.Sprintf("%s%s is served by %s", host, c.route.path, by))
			}
		}
	}
	slices.Sort(lost)
	return few(lost)
}

// holder is the Ingress that has a claim's path.
func (s *site) holder(c claim) types.NamespacedName {
	var r *route
	if c.exact {
		r = s.exact[c.path]
	} else if i, ok := slices.BinarySearchFunc(s.prefixes, c.path, func(p prefix, t string) int {
		return comparePaths(p.path, t)
	}); ok {
		r = s.prefixes[i].route
	}
	if r == nil {
		return types.NamespacedName{} // the host is another namespace's
	}
	return r.ingress
}

// few joins the first of a list, for an Event.
func few(list []string) string {
	if n := len(list); n > maxNamed {
		return fmt.Sprintf("%s; and %d more", strings.Join(list[:maxNamed], "; "), n-maxNamed)
	}
	return strings.Join(list, "; ")
}
