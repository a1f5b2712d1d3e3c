package authn_test

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
)

// shown returns the client certificate of a user, as a server receives it.
func shown(t testing.TB, ca *pki.CA, name string, groups ...string) []*x509.Certificate {
	t.Helper()
	cert, key, err := ca.Client(name, groups...)
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(t, err)
	return []*x509.Certificate{pair.Leaf}
}

// proxied returns a request with headers, in pairs, on a connection with a client certificate.
func proxied(chain []*x509.Certificate, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "https://server/", nil)
	r = r.WithContext(authn.WithConnection(r.Context(), nil))
	if r.TLS = nil; chain != nil {
		r.TLS = &tls.ConnectionState{PeerCertificates: chain}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func newCA(t testing.TB) *pki.CA {
	t.Helper()
	ca, err := pki.NewCAWithin("ca", now.Add(-time.Hour), now.Add(time.Hour))
	require.NoError(t, err)
	return ca
}

func TestRequestHeader_TrustsOnlyProxies(t *testing.T) {
	t.Parallel()
	clients, proxies, strangers := newCA(t), newCA(t), newCA(t)
	proxy := shown(t, proxies, "front-proxy-client")
	jane := shown(t, clients, "jane", "devs")
	server := shown(t, proxies, "front-proxy-client")
	server[0].ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	a := authenticate(t, authn.Options{
		ClientCAs: authn.FixedCAs(clients.Pool()),
		TokenFile: write(t, "tokens.csv", "secret,tom,42\n"),
		RequestHeader: &authn.RequestHeader{
			CAs: authn.FixedCAs(proxies.Pool()), AllowedNames: []string{"front-proxy-client", "other-proxy"},
			Headers: authn.IdentityHeaders{
				Users: []string{"X-Remote-User", "X-User"}, UIDs: []string{"X-Remote-Uid"},
				Groups: []string{"x-remote-group", "X-Roles"}, ExtraPrefixes: []string{"X-Remote-Extra-", "x-more-"},
			},
		},
	}, objects{})
	const all = "system:authenticated"
	anonymous := &authn.User{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}
	for name, c := range map[string]struct {
		chain   []*x509.Certificate
		headers []string
		want    *authn.User // nil: 401
	}{
		"a user": {proxy, []string{"X-Remote-User", "bob"}, &authn.User{Name: "bob", Groups: []string{all}}},
		"another name that is allowed": {shown(t, proxies, "other-proxy"), []string{"X-Remote-User", "bob"},
			&authn.User{Name: "bob", Groups: []string{all}}},
		"everything about a user": {proxy, []string{"X-Remote-User", "bob", "X-Remote-Uid", "7", "X-Remote-Group", "a",
			"X-Remote-Group", "", "X-Remote-Group", "b, c", "X-Roles", "d", "X-Remote-Extra-Scopes", "x",
			"X-Remote-Extra-Scopes", "y", "X-More-Scopes", "z"},
			&authn.User{Name: "bob", UID: "7", Groups: []string{"a", "b, c", "d", all},
				Extra: map[string][]string{"scopes": {"x", "y", "z"}}}},
		"the first header with a value": {proxy, []string{"X-User", "bob", "X-Remote-User", ""},
			&authn.User{Name: "bob", Groups: []string{all}}},
		"of two values the first": {proxy, []string{"X-Remote-User", "bob", "X-Remote-User", "root", "X-Remote-Uid", "1",
			"X-Remote-Uid", "2"}, &authn.User{Name: "bob", UID: "1", Groups: []string{all}}},
		"encoded keys": {proxy, []string{"X-Remote-User", "bob", "X-Remote-Extra-Example.com%2fScopes%2FA", "x",
			"X-Remote-Extra-%66oo", "1", "X-Remote-Extra-Foo", "2", "X-Remote-Extra-100%", "y", "X-Remote-Extra-", "z"},
			&authn.User{Name: "bob", Groups: []string{all}, Extra: map[string][]string{"example.com/scopes/a": {"x"},
				"foo": {"1", "2"}, "100%": {"y"}, "": {"z"}}}},
		"anonymous stays unauthenticated": {proxy, []string{"X-Remote-User", "system:anonymous", "X-Remote-Group",
			"system:unauthenticated"}, anonymous},
		"anonymous without its group": {proxy, []string{"X-Remote-User", "system:anonymous"},
			&authn.User{Name: "system:anonymous"}},
		"the proxy before a token": {proxy, []string{"X-Remote-User", "bob", "Authorization", "Bearer secret"},
			&authn.User{Name: "bob", Groups: []string{all}}},

		"no user, and the certificate is no user's": {proxy, []string{"X-Remote-Group", "system:masters"}, nil},
		"an empty user":                                {proxy, []string{"X-Remote-User", ""}, nil},
		"a proxy's certificate alone":                  {proxy, nil, nil},
		"a name that is not allowed":                   {shown(t, proxies, "intruder"), []string{"X-Remote-User", "bob"}, nil},
		"a name that is allowed, of a CA of strangers": {shown(t, strangers, "front-proxy-client"), []string{"X-Remote-User", "bob"}, nil},
		"a server's certificate":                       {server, []string{"X-Remote-User", "bob"}, nil},
		"a client stays itself": {jane, []string{"X-Remote-User", "bob", "X-Remote-Group", "system:masters"},
			&authn.User{Name: "jane", Groups: []string{"devs", all}}},
		"a client with the name of a proxy": {shown(t, clients, "front-proxy-client"), []string{"X-Remote-User", "bob"},
			&authn.User{Name: "front-proxy-client", Groups: []string{all}}},
		"a token's holder stays itself": {nil, []string{"X-Remote-User", "bob", "Authorization", "Bearer secret"},
			&authn.User{Name: "tom", UID: "42", Groups: []string{all}}},
		"without a certificate": {nil, []string{"X-Remote-User", "bob", "X-Remote-Group", "system:masters"}, anonymous},
	} {
		r := proxied(c.chain, c.headers...)
		for range 2 { // the second time from the connection's cache
			again := r.Clone(r.Context())
			user, ok, err := a.Authenticate(again)
			require.Equal(t, c.want, user, name)
			require.Equal(t, c.want != nil, ok, name)
			require.Equal(t, c.want == nil, err != nil, name)
			again.Header.Del("Authorization")
			require.Empty(t, again.Header, "%s: nothing of it is passed on", name)
		}
	}
}

// Without CAs for proxies there are none, and the headers are not forwarded.
func TestRequestHeader_IsIgnoredWithoutCAs(t *testing.T) {
	t.Parallel()
	clients := newCA(t)
	a := authenticate(t, authn.Options{ClientCAs: authn.FixedCAs(clients.Pool())}, objects{})
	r := proxied(shown(t, clients, "front-proxy-client"), "X-Remote-User", "root", "X-Remote-Uid", "0", "X-Remote-Group",
		"system:masters", "X-Remote-Extra-A", "b", "X-Remote-Userx", "stays", "Accept", "*/*")
	user, ok, err := a.Authenticate(r)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "front-proxy-client", user.Name)
	require.Equal(t, http.Header{"X-Remote-Userx": {"stays"}, "Accept": {"*/*"}}, r.Header)
}

// Without a list of names, every certificate of the CAs is a proxy's.
func TestRequestHeader_AllowsAllNamesByDefault(t *testing.T) {
	t.Parallel()
	proxies := newCA(t)
	a := authenticate(t, authn.Options{RequestHeader: &authn.RequestHeader{CAs: authn.FixedCAs(proxies.Pool()),
		Headers: authn.StandardIdentityHeaders()}}, objects{})
	for _, name := range []string{"any", ""} {
		user, ok, err := a.Authenticate(proxied(shown(t, proxies, name), "X-Remote-User", "bob"))
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "bob", user.Name)
	}
}

// New CAs apply to open connections.
func TestRequestHeader_FollowsItsCAs(t *testing.T) {
	t.Parallel()
	before, after := newCA(t), newCA(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	replace := func(ca *pki.CA) {
		require.NoError(t, os.WriteFile(file+".new", ca.PEM(), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	replace(before)
	cas, err := authn.OpenCAs(slog.New(slog.DiscardHandler), nil, file)
	require.NoError(t, err)
	require.Equal(t, string(before.PEM())+"\n", string(cas.PEM()))
	a := authenticate(t, authn.Options{RequestHeader: &authn.RequestHeader{CAs: cas,
		Headers: authn.StandardIdentityHeaders()}}, objects{})
	old, fresh := proxied(shown(t, before, "proxy")), proxied(shown(t, after, "proxy"))
	believed := func(r *http.Request) bool {
		r.Header.Set("X-Remote-User", "bob")
		user, ok, _ := a.Authenticate(r)
		return ok && user.Name == "bob"
	}
	require.True(t, believed(old))
	require.False(t, believed(fresh))
	replace(after)
	require.Eventually(t, func() bool { return believed(fresh) && !believed(old) }, patience, tick)
	require.Equal(t, string(after.PEM())+"\n", string(cas.PEM()))
}

// A certificate is verified once for each connection, and its validity with each request.
func TestCertificates_AreValidByTheClock(t *testing.T) {
	t.Parallel()
	ca, c := newCA(t), clocktesting.NewFakePassiveClock(now.Add(-2*time.Hour))
	a, err := authn.New(authn.Options{ClientCAs: authn.FixedCAs(ca.Pool()), RequestHeader: &authn.RequestHeader{
		CAs: authn.FixedCAs(ca.Pool()), Headers: authn.StandardIdentityHeaders()}}, objects{}, c,
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for name, headers := range map[string]http.Header{"client": {}, "proxy": {"X-Remote-User": {"client"}}} {
		open := func() func() bool {
			ctx := authn.WithConnection(t.Context(), nil)
			return func() bool {
				r := proxied(shown(t, ca, name)).WithContext(ctx)
				r.Header = headers.Clone()
				user, ok, _ := a.Authenticate(r)
				return ok && user.Name == "client"
			}
		}
		c.SetTime(now.Add(-2 * time.Hour))
		require.False(t, open()(), "%s: not yet", name)
		c.SetTime(now)
		valid := open()
		require.True(t, valid(), name)
		c.SetTime(now.Add(2 * time.Hour))
		require.False(t, valid(), "%s: no longer", name)
		require.False(t, open()(), "%s: no longer", name)
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	clients, proxies := newCA(b), newCA(b)
	a := authenticate(b, authn.Options{ClientCAs: authn.FixedCAs(clients.Pool()), RequestHeader: &authn.RequestHeader{
		CAs: authn.FixedCAs(proxies.Pool()), Headers: authn.StandardIdentityHeaders()}}, objects{})
	for name, r := range map[string]*http.Request{
		"client": proxied(shown(b, clients, "jane"), "Accept", "application/json", "User-Agent", "kubectl",
			"Accept-Encoding", "gzip", "Kubectl-Command", "kubectl get"),
		"proxy": proxied(shown(b, proxies, "proxy")),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if name == "proxy" {
					r.Header.Set("X-Remote-User", "bob")
					r.Header.Set("X-Remote-Group", "devs")
				}
				if _, ok, err := a.Authenticate(r); !ok || err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
