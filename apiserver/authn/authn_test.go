package authn_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

const (
	patience = 30 * time.Second
	tick     = 5 * time.Millisecond
)

// objects is a cluster with these secrets, in which every account exists.
type objects map[string]*corev1.Secret

func (o objects) Find(_ context.Context, _ schema.GroupResource, _, _ string) (authn.Found, error) {
	return authn.Found{UID: "uid"}, nil
}

func (o objects) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	if secret := o[namespace+"/"+name]; secret != nil {
		return secret, nil
	}
	return nil, authn.ErrNotFound
}

func (o objects) TokenUsed(context.Context, *corev1.Secret, string) error { return nil }

func newIssuer(t testing.TB) *authn.Issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	issuer, err := authn.NewIssuer(authn.IssuerOptions{SigningKey: key, Audiences: []string{"api"}})
	require.NoError(t, err)
	return issuer
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func authenticate(t testing.TB, o authn.Options, cluster authn.Objects) *authn.Authentication {
	t.Helper()
	if o.ServiceAccounts == nil {
		o.ServiceAccounts = newIssuer(t)
	}
	a, err := authn.New(o, cluster, clocktesting.NewFakePassiveClock(now), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return a
}

func request(token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if token != "" {
		r.Header.Set("Authorization", token)
	}
	return r
}

func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestTokenFile_AuthenticatesAndReloads(t *testing.T) {
	t.Parallel()
	path := write(t, "tokens.csv", "secret-1,jane,42,\"devs, ops\"\nsecret-2,bob,43\n")
	a := authenticate(t, authn.Options{TokenFile: path}, objects{})
	r := request("Bearer secret-1")
	user, ok, err := a.Authenticate(r)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, &authn.User{Name: "jane", UID: "42", Groups: []string{"devs", "ops", "system:authenticated"}},
		user)
	require.Empty(t, r.Header, "who comes later cannot tell it")
	for _, token := range []string{"secret", "secret-11", "secret-3", "jane"} {
		_, ok, err = a.Authenticate(request("Bearer " + token))
		require.Error(t, err)
		require.False(t, ok)
		require.NotContains(t, err.Error(), token)
	}
	_, ok, _ = a.AuthenticateToken(t.Context(), "secret-1", []string{"elsewhere"})
	require.False(t, ok, "it is for the API server alone")

	require.NoError(t, os.WriteFile(path, []byte("secret-3,carol,44\n"), 0o600))
	require.Eventually(t, func() bool {
		_, was, _ := a.Authenticate(request("Bearer secret-1"))
		_, is, _ := a.Authenticate(request("Bearer secret-3"))
		return !was && is
	}, patience, tick)
}

func TestTokenFile_ErrorsDoNotQuoteIt(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"secret-1,jane\n", "secret-1,,42\n", "secret-1,a,1\nsecret-1,b,2\n",
		"\"secret-1,a,1\n"} {
		_, err := authn.New(authn.Options{TokenFile: write(t, "tokens.csv", content)}, objects{},
			clocktesting.NewFakePassiveClock(now), slog.Default())
		require.Error(t, err)
		require.NotContains(t, err.Error(), "secret-1")
	}
}

func TestBearer_OnlyItsScheme(t *testing.T) {
	t.Parallel()
	a := authenticate(t, authn.Options{TokenFile: write(t, "tokens.csv", "secret,jane,42\n")}, objects{})
	for header, name := range map[string]string{
		"Bearer secret": "jane", "bearer secret": "jane", " Bearer  ": "system:anonymous",
		"Basic c2VjcmV0": "system:anonymous", "Bearer": "system:anonymous", "": "system:anonymous",
	} {
		user, ok, err := a.Authenticate(request(header))
		require.NoError(t, err, header)
		require.True(t, ok)
		require.Equal(t, name, user.Name, header)
	}
	a = authenticate(t, authn.Options{NoAnonymous: true}, objects{})
	_, ok, err := a.Authenticate(request(""))
	require.NoError(t, err)
	require.False(t, ok)
}

// An accepted token must not be forwarded to another server or written to a log. A rejected one is left for other
// authenticators.
func TestBearer_RemovesAnAcceptedTokenFromTheRequest(t *testing.T) {
	t.Parallel()
	a := authenticate(t, authn.Options{TokenFile: write(t, "tokens.csv", "secret,jane,42\n")}, objects{})
	for header, left := range map[string]string{"Bearer secret": "", "Bearer other": "Bearer other",
		"Basic c2VjcmV0": "Basic c2VjcmV0"} {
		r := request(header)
		_, _, _ = a.Authenticate(r)
		require.Equal(t, left, r.Header.Get("Authorization"), header)
	}
}

func TestBootstrapToken_IsValidAsLongAsItsSecret(t *testing.T) {
	t.Parallel()
	secret := func(change func(map[string][]byte)) objects {
		data := map[string][]byte{
			"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
			"usage-bootstrap-authentication": []byte("true"),
			"auth-extra-groups":              []byte("system:bootstrappers:worker, system:bootstrappers:ingress"),
			"expiration":                     []byte(now.Add(time.Second).Format(time.RFC3339)),
		}
		if change != nil {
			change(data)
		}
		return objects{"kube-system/bootstrap-token-abcdef": {Type: corev1.SecretTypeBootstrapToken, Data: data}}
	}
	const token = "Bearer abcdef.0123456789abcdef"
	user, ok, err := authenticate(t, authn.Options{BootstrapTokens: true}, secret(nil)).Authenticate(request(token))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, &authn.User{Name: "system:bootstrap:abcdef", Groups: []string{
		"system:bootstrappers", "system:bootstrappers:worker", "system:bootstrappers:ingress", "system:authenticated",
	}}, user)
	set := func(key, value string) objects {
		return secret(func(data map[string][]byte) { data[key] = []byte(value) })
	}
	wrongType := secret(nil)
	wrongType["kube-system/bootstrap-token-abcdef"].Type = corev1.SecretTypeOpaque
	ending := secret(nil)
	ending["kube-system/bootstrap-token-abcdef"].DeletionTimestamp = &metav1.Time{Time: now}
	for name, secrets := range map[string]objects{
		"no secret":       {},
		"wrong type":      wrongType,
		"being deleted":   ending,
		"wrong secret":    set("token-secret", "fedcba9876543210"),
		"wrong ID":        set("token-id", "fedcba"),
		"expired":         set("expiration", now.Format(time.RFC3339)),
		"expires somehow": set("expiration", "soon"),
		"other usage":     set("usage-bootstrap-authentication", "false"),
		"foreign group":   set("auth-extra-groups", "system:masters"),
	} {
		_, ok, err := authenticate(t, authn.Options{BootstrapTokens: true}, secrets).Authenticate(request(token))
		require.Error(t, err, name)
		require.False(t, ok, name)
	}
	_, ok, _ = authenticate(t, authn.Options{}, secret(nil)).Authenticate(request(token))
	require.False(t, ok, "not enabled")
}

// running runs the authenticators' background work until the test ends.
func running(t testing.TB, a *authn.Authentication) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { a.Run(ctx) })
	t.Cleanup(func() { cancel(); run.Wait() })
}

func TestOIDC_AuthenticatesTheProvidersUsers(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	other := startProvider(t)
	config, err := authn.OIDCOptions{
		IssuerURL: p.URL, ClientID: "coxswain", CAFile: p.caFile, SigningAlgs: []string{"ES256"},
		UsernameClaim: "email", UsernamePrefix: "oidc:", GroupsClaim: "groups", GroupsPrefix: "oidc:",
		RequiredClaims: map[string]string{"hd": "example.com"},
	}.Config()
	require.NoError(t, err)
	a := authenticate(t, authn.Options{Config: &config}, objects{})
	claims := func(more map[string]any) map[string]any {
		all := map[string]any{"email": "jane@example.com", "email_verified": true, "hd": "example.com",
			"groups": []string{"devs", "ops"}}
		for k, v := range more {
			all[k] = v
		}
		return all
	}
	good := p.token(t, claims(nil))
	_, ok, err := a.AuthenticateToken(t.Context(), good, nil)
	require.ErrorContains(t, err, "not known yet", "the provider has not been asked")
	require.False(t, ok)
	running(t, a)
	require.Eventually(t, func() bool {
		_, ok, _ := a.AuthenticateToken(t.Context(), good, nil)
		return ok
	}, patience, tick)
	id, _, err := a.AuthenticateToken(t.Context(), good, nil)
	require.NoError(t, err)
	require.Equal(t,
		&authn.User{Name: "oidc:jane@example.com", Groups: []string{"oidc:devs", "oidc:ops", "system:authenticated"}},
		id.User)
	id, _, err = a.AuthenticateToken(t.Context(), p.token(t, claims(map[string]any{"groups": "devs"})), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"oidc:devs", "system:authenticated"}, id.User.Groups)

	parts := strings.Split(good, ".")
	forged := other.token(t, claims(map[string]any{"iss": p.URL}))
	for name, token := range map[string]string{
		"another audience":    p.token(t, claims(map[string]any{"aud": "other"})),
		"expired":             p.token(t, claims(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()})),
		"unverified address":  p.token(t, claims(map[string]any{"email_verified": false})),
		"no name":             p.token(t, claims(map[string]any{"email": ""})),
		"a missing claim":     p.token(t, claims(map[string]any{"hd": "example.org"})),
		"groups of no sort":   p.token(t, claims(map[string]any{"groups": 5})),
		"another key":         forged,
		"another issuer":      other.token(t, claims(nil)),
		"alg none":            "eyJhbGciOiJub25lIn0." + parts[1] + ".",
		"another's signature": parts[0] + "." + parts[1] + "." + strings.Split(forged, ".")[2],
	} {
		_, ok, _ := a.AuthenticateToken(t.Context(), token, nil)
		require.False(t, ok, name)
	}
}

func TestOIDC_RejectsUnsafeOptions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]authn.OIDCOptions{
		"plain HTTP": {IssuerURL: "http://issuer", ClientID: "a"},
		"no client":  {IssuerURL: "https://issuer"},
		"HMAC":       {IssuerURL: "https://issuer", ClientID: "a", SigningAlgs: []string{"HS256"}},
		"none":       {IssuerURL: "https://issuer", ClientID: "a", SigningAlgs: []string{"none"}},
		"no CAs":     {IssuerURL: "https://issuer", ClientID: "a", CAFile: "/nothing"},
	} {
		config, err := o.Config()
		if err == nil {
			_, err = authn.New(authn.Options{Config: &config}, objects{}, clocktesting.NewFakePassiveClock(now),
				slog.Default())
		}
		require.Error(t, err, name)
	}
}

func TestWebhook_CachesAnswers(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	service := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		switch review.Spec.Token {
		case "good":
			review.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true, Audiences: []string{"vault", "api"},
				User: authenticationv1.UserInfo{Username: "jane", UID: "42", Groups: []string{"devs"},
					Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}},
			}
		case "elsewhere":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: []string{"vault"}}
		case "broken":
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if review.APIVersion != "authentication.k8s.io/v1" {
			w.WriteHeader(http.StatusBadRequest)
		}
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer service.Close()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{
		Server: service.URL + "/review", CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
			Bytes: service.Certificate().Raw}),
	}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	kubeconfig, err := clientcmd.Write(*config)
	require.NoError(t, err)

	clock := clocktesting.NewFakePassiveClock(now)
	a, err := authn.New(authn.Options{ServiceAccounts: newIssuer(t), Webhook: &authn.WebhookOptions{
		ConfigFile: write(t, "webhook", string(kubeconfig)), Version: "v1", CacheTTL: time.Minute,
	}}, objects{}, clock, slog.Default())
	require.NoError(t, err)
	running(t, a)
	for range 3 {
		user, ok, err := a.Authenticate(request("Bearer good"))
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, &authn.User{
			Name: "jane", UID: "42", Groups: []string{"devs", "system:authenticated"},
			Extra: map[string][]string{"k": {"v"}},
		}, user)
	}
	require.EqualValues(t, 1, asked.Load())
	clock.SetTime(now.Add(time.Minute))
	_, ok, err := a.Authenticate(request("Bearer good"))
	require.NoError(t, err)
	require.True(t, ok)
	require.EqualValues(t, 2, asked.Load())
	for _, token := range []string{"unknown", "elsewhere", "broken", "broken"} {
		_, ok, err := a.Authenticate(request("Bearer " + token))
		require.Error(t, err)
		require.False(t, ok)
		require.NotContains(t, err.Error(), "Bearer")
	}
	require.EqualValues(t, 6, asked.Load(), "a service that fails is asked again")
}

// BenchmarkServiceAccountToken measures a token that has been seen before, as in nearly every request.
func BenchmarkServiceAccountToken(b *testing.B) {
	issuer := newIssuer(b)
	a := authenticate(b, authn.Options{ServiceAccounts: issuer}, objects{})
	account := &corev1.ServiceAccount{}
	account.Namespace, account.Name, account.UID = "default", "robot", "uid"
	token, err := issuer.Sign(authn.TokenRequest{Account: account, Audiences: []string{"api"}, IssuedAt: time.Now(),
		Lifetime: time.Hour})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok, err := a.AuthenticateToken(b.Context(), token, nil); !ok || err != nil {
			b.Fatal(err)
		}
	}
}
