package delegatedauth_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/internal/client/delegatedauth"
	"github.com/coxswain-dev/coxswain/testenv"
)

// get returns the status of a GET with a user's certificate, if user is not nil, or with a token.
func get(t *testing.T, url string, user *rest.Config, token string) int {
	t.Helper()
	tc := &tls.Config{InsecureSkipVerify: true}
	if user != nil {
		cert, err := tls.X509KeyPair(user.CertData, user.KeyData)
		require.NoError(t, err)
		tc.Certificates = []tls.Certificate{cert}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := (&http.Transport{TLSClientConfig: tc, DisableKeepAlives: true}).RoundTrip(req)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, res.StatusCode == http.StatusOK, string(body) == "secret", "%s", body)
	return res.StatusCode
}

func TestProtect_ReviewsTokensAndAccess(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.APIServerOnly())
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	clients := x509.NewCertPool()
	require.True(t, clients.AppendCertsFromPEM(config.CAData))
	guard := &delegatedauth.Guard{ClientCAs: clients, Clock: testclock.NewFakeClock(time.Now())}
	secret := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") })
	server := httptest.NewUnstartedServer(guard.Protect(client, delegatedauth.Healthy, secret))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)

	for _, token := range []string{"", "made-up"} {
		for _, path := range []string{"/metrics", "/debug/pprof/", "/healthz/deeper", "/healthz/../metrics"} {
			require.Equal(t, http.StatusUnauthorized, get(t, server.URL+path, nil, token), path)
		}
		require.Equal(t, http.StatusOK, get(t, server.URL+"/healthz", nil, token), "health is for everybody")
	}
	require.Equal(t, http.StatusOK, get(t, server.URL+"/metrics", config, ""))
	require.Equal(t, http.StatusForbidden, get(t, server.URL+"/metrics", testenv.User(t, config, "jane"), ""))
	require.Equal(t, http.StatusOK,
		get(t, server.URL+"/metrics", testenv.User(t, config, "prometheus", "system:monitoring"), ""))
}

// HTTP/2 makes requests cheap for the client, so an unknown client must open a new connection for each.
func TestProtect_EndsConnectionsOfUnknownClients(t *testing.T) {
	t.Parallel()
	guard := &delegatedauth.Guard{Clock: testclock.NewFakeClock(time.Now())}
	for _, path := range []string{"/metrics", "/healthz"} {
		for major, want := range map[int]string{1: "", 2: "close"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.ProtoMajor = major
			w := httptest.NewRecorder()
			guard.Protect(nil, delegatedauth.Healthy, http.NotFoundHandler()).ServeHTTP(w, r)
			require.Equal(t, want, w.Header().Get("Connection"), "HTTP/%d %s", major, path)
		}
	}
}

// Users whose groups read the same when joined must not share an answer.
func TestAllowed_CachesEachAccessSeparately(t *testing.T) {
	t.Parallel()
	client, err := kubernetes.NewForConfig(testenv.Start(t, testenv.APIServerOnly()))
	require.NoError(t, err)
	guard := &delegatedauth.Guard{Clock: testclock.NewFakeClock(time.Now())}
	may := func(groups ...string) bool {
		t.Helper()
		allowed, err := guard.Allowed(t.Context(), client, &authenticationv1.UserInfo{Username: "jane", Groups: groups},
			authorizationv1.SubjectAccessReviewSpec{
				NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"},
			})
		require.NoError(t, err)
		return allowed
	}
	require.True(t, may("a", "system:masters"))
	require.False(t, may("a system:masters"))
	require.False(t, may(`a","system:masters`))
}
