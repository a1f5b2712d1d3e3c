package ingress

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/utils/ptr"
)

// virtualHostOf builds a virtual host with paths: "Exact /a" or "Prefix /a". Their routes have the same names.
func virtualHostOf(rules ...string) *virtualHost {
	exact, prefixes := map[string]*route{}, map[string]*route{}
	for _, rule := range rules {
		sort, p, _ := strings.Cut(rule, " ")
		r := &route{path: rule}
		if sort == "Exact" {
			exact[p] = r
		} else {
			prefixes[strings.TrimSuffix(p, "/")] = r
		}
	}
	return newVirtualHost(exact, prefixes, nil)
}

// TestVirtualHost_MatchesLikeTheDocumentation tests the table "Examples" of the path types on Kubernetes' website,
// row by row.
func TestVirtualHost_MatchesLikeTheDocumentation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rules   string
		request string
		want    string // "" for none
	}{
		{"Prefix /", "/anything/below", "Prefix /"},
		{"Exact /foo", "/foo", "Exact /foo"},
		{"Exact /foo", "/bar", ""},
		{"Exact /foo", "/foo/", ""},
		{"Exact /foo/", "/foo", ""},
		{"Prefix /foo", "/foo", "Prefix /foo"},
		{"Prefix /foo", "/foo/", "Prefix /foo"},
		{"Prefix /foo/", "/foo", "Prefix /foo/"},
		{"Prefix /foo/", "/foo/", "Prefix /foo/"},
		{"Prefix /aaa/bb", "/aaa/bbb", ""},
		{"Prefix /aaa/bbb", "/aaa/bbb", "Prefix /aaa/bbb"},
		{"Prefix /aaa/bbb/", "/aaa/bbb", "Prefix /aaa/bbb/"},
		{"Prefix /aaa/bbb", "/aaa/bbb/", "Prefix /aaa/bbb"},
		{"Prefix /aaa/bbb", "/aaa/bbb/ccc", "Prefix /aaa/bbb"},
		{"Prefix /aaa/bbb", "/aaa/bbbxyz", ""},
		{"Prefix /, Prefix /aaa", "/aaa/ccc", "Prefix /aaa"},
		{"Prefix /, Prefix /aaa, Prefix /aaa/bbb", "/aaa/bbb", "Prefix /aaa/bbb"},
		{"Prefix /, Prefix /aaa, Prefix /aaa/bbb", "/ccc", "Prefix /"},
		{"Prefix /aaa", "/ccc", ""},
		{"Prefix /foo, Exact /foo", "/foo", "Exact /foo"},
		// In addition to the table: "longest path first", and neighbours that sort between a path and paths below it.
		{"Exact /foo, Prefix /foo/bar", "/foo/bar", "Prefix /foo/bar"},
		{"Prefix /a, Prefix /a-b, Prefix /a/b", "/a/c", "Prefix /a"},
		{"Prefix /a, Prefix /a-b, Prefix /a/b", "/a-b/c", "Prefix /a-b"},
		{"Prefix /a, Prefix /a-b, Prefix /a/b", "/a/b/c", "Prefix /a/b"},
		{"Prefix /a/b/c, Prefix /a", "/a/b/d", "Prefix /a"},
		{"Prefix /", "/", "Prefix /"},
		{"Prefix /a", "/", ""},
	} {
		got := ""
		if r := virtualHostOf(strings.Split(c.rules, ", ")...).match(c.request); r != nil {
			got = r.path
		}
		require.Equal(t, c.want, got, "%s, asked for %s", c.rules, c.request)
	}
}

// TestVirtualHost_MatchesLikeALinearSearch compares with a model: the longest prefix that equals the path or is
// above it.
func TestVirtualHost_MatchesLikeALinearSearch(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	elements := []string{"a", "b", "a-", "a.b", "", "ab"}
	path := func() string {
		var s strings.Builder
		for range random.IntN(5) {
			s.WriteString("/" + elements[random.IntN(len(elements))])
		}
		return s.String()
	}
	for range 2000 {
		prefixes := map[string]*route{}
		for range random.IntN(12) {
			p := strings.TrimSuffix(path(), "/")
			prefixes[p] = &route{path: p}
		}
		s := newVirtualHost(nil, prefixes, nil)
		requested := path() + "/"
		var want *route
		for p, r := range prefixes {
			if strings.HasPrefix(requested, p+"/") && (want == nil || len(p) > len(want.path)) {
				want = r
			}
		}
		require.Same(t, want, s.match(requested), "%q among %v", requested, prefixes)
	}
}

// TestTable_MatchesHostsLikeTheDocumentation tests the table of wildcard hosts on Kubernetes' website.
func TestTable_MatchesHostsLikeTheDocumentation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		hosts, request, want string
	}{
		{"*.foo.com", "bar.foo.com", "*.foo.com"},
		{"*.foo.com", "baz.bar.foo.com", ""},
		{"*.foo.com", "foo.com", ""},
		{"*.foo.com, bar.foo.com", "bar.foo.com", "bar.foo.com"},
		{"foo.com", "FOO.com:8080", "foo.com"},
		{"foo.com", "foo.com.", "foo.com"},
		{"foo.com, ", "other.com", ""},
		{"[::1]", "[::1]:80", "[::1]"},
	} {
		tab := &table{hosts: map[string]*virtualHost{}}
		for host := range strings.SplitSeq(c.hosts, ", ") {
			s := virtualHostOf("Prefix /")
			s.prefixes[0].route.host = host
			tab.hosts[host] = s
		}
		got := ""
		if r := tab.match(hostOf(c.request), "/"); r != nil {
			got = r.host
		}
		require.Equal(t, c.want, got, "%s, asked for %s", c.hosts, c.request)
	}
}

func TestTable_UsesTheMostSpecificHostOnly(t *testing.T) {
	t.Parallel()
	tab := &table{hosts: map[string]*virtualHost{"a.foo.com": virtualHostOf("Prefix /x"), "*.foo.com": virtualHostOf("Prefix /")}}
	require.Nil(t, tab.match("a.foo.com", "/y"))
	require.NotNil(t, tab.match("b.foo.com", "/y"))
}

func TestRequestPath_ResolvesDotSegments(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "/", "/a//b": "/a//b", "/a/../b": "/b", "/a/./b/": "/a/b/", "/..": "/", "/a/..": "/", "/a/b/..": "/a/",
		"/.well-known/x": "/.well-known/x", "/../../etc": "/etc",
	} {
		require.Equal(t, want, requestPath(in), in)
	}
}

func TestSettings_AreLimitedAndReportErrors(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int64{"0": 0, "17": 17, "8m": 8 << 20, "1G": 1 << 30, "2k": 2048} {
		got, err := parseSize(value)
		require.NoError(t, err, value)
		require.Equal(t, want, got, value)
	}
	for _, value := range []string{"", "m", "-1", "9999999999999999999", "9223372036854775807k", "1.5m", "1e3"} {
		_, err := parseSize(value)
		require.Error(t, err, value)
	}
	s, warnings := parseSettings(map[string]string{AnnotationReadTimeout: "3601", AnnotationSSLRedirect: "no",
		AnnotationConnectTimeout: "2"})
	require.Len(t, warnings, 2)
	require.Equal(t, defaultSettings.response, s.response)
	require.True(t, s.redirect)
}

func pathOf(sort networkingv1.PathType, path, service string) networkingv1.HTTPIngressPath {
	return networkingv1.HTTPIngressPath{Path: path, PathType: ptr.To(sort), Backend: networkingv1.IngressBackend{
		Service: &networkingv1.IngressServiceBackend{Name: service,
			Port: networkingv1.ServiceBackendPort{Name: "http"}}}}
}
