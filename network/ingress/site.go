package ingress

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// site is the routing of one host: exact paths, and prefixes by path elements. It does not change once it is built.
type site struct {
	exact    map[string]*route
	prefixes []prefix // in the order of comparePaths
	fallback *route   // for paths that nothing matches; nil for the controller's default
}

// prefix is a path without its trailing slash; that of the root is empty.
type prefix struct {
	path   string
	parent int // index of the longest other prefix that contains this one; -1 where there is none
	route  *route
}

// newSite builds a site from routes that all have a path of their own.
func newSite(exact, prefixes map[string]*route, fallback *route) *site {
	s := &site{exact: exact, fallback: fallback}
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

// match returns the route of a request's path; nil where the site has none. An exact path goes before a prefix, and
// a longer prefix before a shorter one, as the API documentation of Ingress has it.
func (s *site) match(requested string) *route {
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
	// Every prefix of the path is the closest lower one or contains it, so it is no longer than what the two have
	// in common.
	common := commonElements(s.prefixes[i].path, trimmed)
	for i >= 0 && len(s.prefixes[i].path) > common {
		i = s.prefixes[i].parent
	}
	if i < 0 {
		return s.fallback
	}
	return s.prefixes[i].route
}

// comparePaths orders paths so that a path is followed by all those below it: the slash sorts before every other byte.
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

// containsPath reports whether a path is another one or above it.
func containsPath(above, below string) bool {
	return strings.HasPrefix(below, above) && (len(below) == len(above) || below[len(above)] == '/')
}

// commonElements is the length of the longest path that contains both.
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

// requestPath is the path by which a request is routed. Dot segments are resolved, so that /a/../b is routed to the
// backend of /b, which will read it as that; the request itself goes on as it came.
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

// table is the routing of all hosts. It does not change once it is built: a request sees one table from its beginning
// to its end.
type table struct {
	sites map[string]*site // by host in lower case, *.example.com for wildcards, "" for rules without a host
	// fallback is the default backend of the oldest Ingress that has one and no rules.
	fallback *route
	certs    map[string]*certificate // by host, as sites
}

// match returns the route of a request; nil where there is none. The most specific host is chosen first, and its paths
// alone decide, as the API documentation of IngressRule has it.
func (t *table) match(host, requested string) *route {
	s := t.sites[host]
	if s == nil {
		s = t.sites[wildcardOf(host)]
	}
	if s == nil {
		s = t.sites[""]
	}
	if s != nil {
		if r := s.match(requested); r != nil {
			return r
		}
	}
	return t.fallback
}

// certificate returns that of a host; nil where there is none.
func (t *table) certificate(host string) *certificate {
	if c := t.certs[host]; c != nil {
		return c
	}
	return t.certs[wildcardOf(host)]
}

// wildcardOf is the wildcard that covers a host: it stands for exactly one label.
func wildcardOf(host string) string {
	_, rest, ok := strings.Cut(host, ".")
	if !ok || rest == "" {
		return "\x00" // no host
	}
	return "*." + rest
}

// hostOf is the host that a request names, without the port and in lower case.
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
