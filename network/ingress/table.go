package ingress

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// virtualHost is the routing of one host: exact paths, and prefixes by path elements. It is immutable.
type virtualHost struct {
	exact    map[string]*route
	prefixes []prefix // sorted by comparePaths
	fallback *route   // for paths without a match; nil selects the controller's default
}

// prefix is a path without its trailing slash; the root's is empty.
type prefix struct {
	path   string
	parent int // index of the longest other prefix that contains this one, or -1
	route  *route
}

// newVirtualHost builds a virtual host from routes with distinct paths.
func newVirtualHost(exact, prefixes map[string]*route, fallback *route) *virtualHost {
	s := &virtualHost{exact: exact, fallback: fallback}
	for p, r := range prefixes {
		s.prefixes = append(s.prefixes, prefix{path: p, route: r})
	}
	slices.SortFunc(s.prefixes, func(a, b prefix) int { return comparePaths(a.path, b.path) })
	for i := range s.prefixes {
		parent := i - 1
		for parent >= 0 && !containsPath(s.prefixes[parent].path, s.prefixes[i].path) {
			parent = s.prefixes[parent].parent
		}
		s.prefixes[i].parent = parent
	}
	return s
}

// match returns the route of a request's path, or nil. An exact path takes precedence over a prefix, and a longer
// prefix over a shorter one, as the API documentation of Ingress requires.
func (s *virtualHost) match(requested string) *route {
	if r := s.exact[requested]; r != nil {
		return r
	}
	trimmed := strings.TrimSuffix(requested, "/")
	i, found := slices.BinarySearchFunc(s.prefixes, trimmed, func(p prefix, t string) int {
		return comparePaths(p.path, t)
	})
	if found {
		return s.prefixes[i].route
	}
	if i--; i < 0 {
		return s.fallback
	}
	// Every prefix of the path is the closest lower one or contains it, so it is not longer than the part that the two
	// have in common.
	common := commonElements(s.prefixes[i].path, trimmed)
	for i >= 0 && len(s.prefixes[i].path) > common {
		i = s.prefixes[i].parent
	}
	if i < 0 {
		return s.fallback
	}
	return s.prefixes[i].route
}

// comparePaths orders paths so that all paths below a path follow it: the slash sorts before every other byte.
func comparePaths(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	if n == len(a) || n == len(b) {
		return cmp.Compare(len(a), len(b))
	}
	rank := func(c byte) int {
		if c == '/' {
			return -1
		}
		return int(c)
	}
	return cmp.Compare(rank(a[n]), rank(b[n]))
}

// containsPath reports whether a path equals another one or is above it.
func containsPath(above, below string) bool {
	return strings.HasPrefix(below, above) && (len(below) == len(above) || below[len(above)] == '/')
}

// commonElements returns the length of the longest path that contains both.
func commonElements(a, b string) int {
	n, end := 0, 0
	for ; n < len(a) && n < len(b) && a[n] == b[n]; n++ {
		if a[n] == '/' {
			end = n
		}
	}
	atEnd := func(s string) bool { return n == len(s) || s[n] == '/' }
	if atEnd(a) && atEnd(b) {
		return n
	}
	return end
}

// requestPath returns the path that routes a request. Dot segments are resolved, so that /a/../b is routed to the
// backend of /b, which will interpret it that way. The request itself is forwarded unchanged.
func requestPath(p string) string {
	if p == "" {
		return "/"
	}
	if !strings.Contains(p, "/.") {
		return p
	}
	clean := path.Clean(p)
	if clean != "/" && (strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")) {
		clean += "/"
	}
	return clean
}

// table is the routing of all hosts. It is immutable: a request uses one table from beginning to end.
type table struct {
	hosts map[string]*virtualHost // by host in lower case, *.example.com for wildcards, "" for rules without a host
	// fallback is the default backend of the oldest Ingress with one and without rules.
	fallback *route
	certs    map[string]*certificate // by host, like hosts
}

// match returns the route of a request, or nil. The most specific host is chosen first, and only its paths count, as
// the API documentation of IngressRule requires.
func (t *table) match(host, requested string) *route {
	s := t.hosts[host]
	if s == nil {
		s = t.hosts[wildcardOf(host)]
	}
	if s == nil {
		s = t.hosts[""]
	}
	if s != nil {
		if r := s.match(requested); r != nil {
			return r
		}
	}
	return t.fallback
}

// certificate returns the certificate of a host, or nil.
func (t *table) certificate(host string) *certificate {
	if c := t.certs[host]; c != nil {
		return c
	}
	return t.certs[wildcardOf(host)]
}

// wildcardOf returns the wildcard that covers a host. A wildcard stands for exactly one label.
func wildcardOf(host string) string {
	_, rest, ok := strings.Cut(host, ".")
	if !ok || rest == "" {
		return "\x00" // not a host
	}
	return "*." + rest
}

// hostOf returns the host of a request in lower case, without the port.
func hostOf(header string) string {
	host := header
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host, ']') < i {
		host = host[:i]
	}
	host = strings.TrimSuffix(host, ".")
	for i := range len(host) {
		if c := host[i]; c >= 'A' && c <= 'Z' {
			return strings.ToLower(host)
		}
	}
	return host
}
