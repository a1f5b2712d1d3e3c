package apiserver_test

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/testenv"
)

const (
	accounts = "/api/v1/namespaces/default/serviceaccounts"
	whoAmI   = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	reviews  = "/apis/authentication.k8s.io/v1/tokenreviews"
)

// withTokens starts a server and returns the key of its tokens.
func withTokens(t testing.TB, change func(*authn.Options)) (*server, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := pki.NewKey()
	require.NoError(t, err)
	var o authn.Options
	o.ServiceAccounts, err = authn.NewIssuer(authn.IssuerOptions{SigningKey: key, Audiences: []string{"api"}})
	require.NoError(t, err)
	if change != nil {
		change(&o)
	}
	s := connect(t, testenv.Start(t, testenv.APIServerOnly(), testenv.WithAuthentication(o)))
	s.bind("view", m{"kind": "Group", "name": "system:serviceaccounts", "apiGroup": "rbac.authorization.k8s.io"})
	return s, key
}

// bearing returns the same server for a client whose only credential is a token.
func (s *server) bearing(token string) *server {
	s.t.Helper()
	config := rest.AnonymousClientConfig(s.config)
	config.BearerToken = token
	return &server{t: s.t, config: config, http: httpClient(s.t, config, true), bearer: token}
}

// whoami returns the user that the server authenticates.
func (s *server) whoami() authenticationv1.UserInfo {
	s.t.Helper()
	var review authenticationv1.SelfSubjectReview
	body := s.do(http.MethodPost, whoAmI, m{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).ok(
		http.StatusCreated).body
	require.NoError(s.t, json.Unmarshal(body, &review))
	return review.Status.UserInfo
}

// refusesToken requires that a token is rejected.
func (s *server) refusesToken(token, why string) {
	s.t.Helper()
	s.bearing(token).get(configMaps).refused(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	status := s.reviewToken(token)
	require.False(s.t, status.Authenticated)
	require.Empty(s.t, status.User)
	require.Contains(s.t, status.Error, why)
}

func (s *server) reviewToken(token string, audiences ...string) authenticationv1.TokenReviewStatus {
	s.t.Helper()
	var review authenticationv1.TokenReview
	body := s.create(reviews, authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
	}).body
	require.NoError(s.t, json.Unmarshal(body, &review))
	return review.Status
}

func (s *server) account(name string) string {
	s.t.Helper()
	made := s.create(accounts, m{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": m{"name": name}})
	return made.at("metadata", "uid").(string)
}

// token requests a token of an account, bound to an object if the spec has one.
func (s *server) token(account string, spec m) *answer {
	s.t.Helper()
	return s.do(http.MethodPost, accounts+"/"+account+"/token",
		m{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
}

func (a *answer) token() string {
	a.t.Helper()
	return a.ok(http.StatusCreated).at("status", "token").(string)
}

func claimsOf(t testing.TB, token string) m {
	t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	require.NoError(t, err)
	var claims m
	require.NoError(t, json.Unmarshal(payload, &claims))
	return claims
}

func TestTokenRequest_ReturnsATokenOfTheAccount(t *testing.T) {
	t.Parallel()
	s, _ := withTokens(t, nil)
	uid := s.account("robot")
	answer := s.token("robot", m{})
	token := answer.token()
	require.Equal(t, []any{"api"}, answer.at("spec", "audiences"))
	require.EqualValues(t, 3600, answer.at("spec", "expirationSeconds"))
	require.Equal(t, "robot", answer.at("metadata", "name"))

	claims := claimsOf(t, token)
	require.Equal(t, "system:serviceaccount:default:robot", claims["sub"])
	require.Equal(t, authn.DefaultIssuer, claims["iss"])
	require.Equal(t, []any{"api"}, claims["aud"], "one audience is a list too")
	require.EqualValues(t, 3600, claims["exp"].(float64)-claims["iat"].(float64))
	require.Equal(t, m{"namespace": "default", "serviceaccount": m{"name": "robot", "uid": uid}},
		claims["kubernetes.io"])

	want := authenticationv1.UserInfo{
		Username: "system:serviceaccount:default:robot", UID: uid,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"},
		Extra:  map[string]authenticationv1.ExtraValue{authn.ExtraCredentialID: {"JTI=" + claims["jti"].(string)}},
	}
	require.Equal(t, want, s.bearing(token).whoami())
	require.Equal(t, authenticationv1.TokenReviewStatus{Authenticated: true, User: want, Audiences: []string{"api"}},
		s.reviewToken(token))
}

func TestTokenRequest_BoundToAPodNamesPodAndNode(t *testing.T) {
	t.Parallel()
	s, _ := withTokens(t, nil)
	s.account("robot")
	p := pod("p")
	p["spec"].(m)["serviceAccountName"] = "robot"
	p["spec"].(m)["nodeName"] = "n"
	uid := s.create(pods, p).at("metadata", "uid").(string)
	node := s.create(nodes, m{"apiVersion": "v1", "kind": "Node", "metadata": m{"name": "n"}}).at("metadata",
		"uid").(string)

	bound := m{"boundObjectRef": m{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid},
		"expirationSeconds": 3607}
	answer := s.token("robot", bound)
	claims := claimsOf(t, answer.token())
	kubernetes := claims["kubernetes.io"].(m)
	require.Equal(t, m{"name": "p", "uid": uid}, kubernetes["pod"])
	require.Equal(t, m{"name": "n", "uid": node}, kubernetes["node"])
	require.EqualValues(t, 3607, kubernetes["warnafter"].(float64)-claims["iat"].(float64))
	require.EqualValues(t, 365*24*3600, claims["exp"].(float64)-claims["iat"].(float64),
		"for clients that do not read it again")

	extra := s.bearing(answer.token()).whoami().Extra
	require.Equal(t, map[string]authenticationv1.ExtraValue{
		authn.ExtraPodName: {"p"}, authn.ExtraPodUID: {uid}, authn.ExtraNodeName: {"n"}, authn.ExtraNodeUID: {node},
		authn.ExtraCredentialID: {"JTI=" + claims["jti"].(string)},
	}, extra)

	bound["audiences"] = []any{"elsewhere"}
	claims = claimsOf(t, s.token("robot", bound).token())
	require.EqualValues(t, 3607, claims["exp"].(float64)-claims["iat"].(float64),
		"other tokens have the requested lifetime")
}

func TestTokenRequest_RejectsInvalidSpecs(t *testing.T) {
	t.Parallel()
	s, _ := withTokens(t, func(o *authn.Options) { o.ServiceAccounts.MaxExpiration = 2 * time.Hour })
	s.account("robot")
	s.account("other")
	p := pod("p")
	p["spec"].(m)["serviceAccountName"] = "other"
	s.create(pods, p)
	for name, c := range map[string]struct {
		account string
		spec    m
		code    int
		reason  metav1.StatusReason
		words   string
	}{
		"no account": {"nobody", m{}, 404, metav1.StatusReasonNotFound, `serviceaccounts "nobody" not found`},
		"too short": {"robot", m{"expirationSeconds": 599}, 422, metav1.StatusReasonInvalid,
			"may not specify a duration less than 10 minutes"},
		"too long": {"robot", m{"expirationSeconds": 1<<32 + 1}, 422, metav1.StatusReasonInvalid,
			"may not specify a duration larger than 2^32 seconds"},
		"another's": {"robot", m{"boundObjectRef": m{"apiVersion": "v1", "kind": "Pod", "name": "p"}}, 400,
			metav1.StatusReasonBadRequest, "pod running with different serviceaccount name"},
		"another UID": {"other", m{"boundObjectRef": m{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "x"}},
			409, metav1.StatusReasonConflict, "the UID in the bound object reference (x) does not match"},
		"no such pod": {"robot", m{"boundObjectRef": m{"apiVersion": "v1", "kind": "Pod", "name": "q"}}, 404,
			metav1.StatusReasonNotFound, `pods "q" not found`},
		"not bindable": {"robot", m{"boundObjectRef": m{"apiVersion": "v1", "kind": "ConfigMap", "name": "c"}}, 400,
			metav1.StatusReasonBadRequest, "cannot bind token to object of type /v1, Kind=ConfigMap"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{t: t, config: s.config, http: s.http}
			s.token(c.account, c.spec).refused(c.code, c.reason, c.words)
		})
	}
	long := s.token("robot", m{"expirationSeconds": 3 * 3600}).ok(http.StatusCreated)
	require.EqualValues(t, 2*3600, long.at("spec", "expirationSeconds"))
	require.Contains(t, long.header.Get("Warning"), "shortened to 7200 seconds")
}

func TestServiceAccountToken_EndsWithItsBoundObject(t *testing.T) {
	t.Parallel()
	s, _ := withTokens(t, nil)
	bind := func(kind, name string) m {
		return m{"boundObjectRef": m{"apiVersion": "v1", "kind": kind, "name": name}}
	}
	account := func(name string) m {
		return m{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": m{"name": name}}
	}
	p := pod("p")
	p["spec"].(m)["serviceAccountName"] = "pods"
	for name, c := range map[string]struct {
		spec       m
		collection string
		object     m
	}{
		"accounts": {m{}, accounts, account("accounts")},
		"pods":     {bind("Pod", "p"), pods, p},
		"secrets": {bind("Secret", "s"), "/api/v1/namespaces/default/secrets",
			m{"apiVersion": "v1", "kind": "Secret", "metadata": m{"name": "s"}}},
		"nodes": {bind("Node", "n"), nodes, m{"apiVersion": "v1", "kind": "Node", "metadata": m{"name": "n"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{t: t, config: s.config, http: s.http}
			if name != "accounts" {
				s.account(name)
			}
			s.create(c.collection, c.object)
			token := s.token(name, c.spec).token()
			s.bearing(token).get(configMaps).ok(http.StatusOK)

			path := c.collection + "/" + c.object["metadata"].(m)["name"].(string)
			s.delete(path, m{"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}).ok(http.StatusOK)
			s.refusesToken(token, "not found")
			s.create(c.collection, c.object)
			s.refusesToken(token, "not the one it was made for")
		})
	}
}

// forgery returns a token for the account that the test signs.
func forgery(t testing.TB, key jose.SigningKey, options *jose.SignerOptions, change func(*jwt.Claims),
	uid string) string {
	t.Helper()
	signer, err := jose.NewSigner(key, options)
	require.NoError(t, err)
	now := time.Now()
	c := jwt.Claims{
		Issuer: authn.DefaultIssuer, Subject: "system:serviceaccount:default:robot", Audience: jwt.Audience{"api"},
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now),
		Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
	}
	if change != nil {
		change(&c)
	}
	token, err := jwt.Signed(signer).Claims(c).Claims(m{"kubernetes.io": m{
		"namespace": "default", "serviceaccount": m{"name": "robot", "uid": uid},
	}}).Serialize()
	require.NoError(t, err)
	return token
}

func TestServiceAccountToken_RefusesForgeries(t *testing.T) {
	t.Parallel()
	s, key := withTokens(t, nil)
	uid := s.account("robot")
	foreign, err := pki.NewKey()
	require.NoError(t, err)
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	ours := jose.SigningKey{Algorithm: jose.ES256, Key: key}
	s.bearing(forgery(t, ours, nil, nil, uid)).get(configMaps).ok(http.StatusOK) // without changes the token is valid

	good := s.token("robot", m{}).token()
	parts := strings.Split(good, ".")
	encode := base64.RawURLEncoding.EncodeToString
	keyID := s.get("/openid/v1/jwks").at("keys").([]any)[0].(m)["kid"]
	for name, c := range map[string]struct{ token, why string }{
		"another audience": {s.token("robot", m{"audiences": []any{"vault"}}).token(), "not meant for this audience"},
		"expired": {forgery(t, ours, nil, func(c *jwt.Claims) {
			c.Expiry = jwt.NewNumericDate(time.Now().Add(-5 * time.Minute))
		}, uid), "expired"},
		"not yet valid": {forgery(t, ours, nil, func(c *jwt.Claims) {
			c.NotBefore = jwt.NewNumericDate(time.Now().Add(5 * time.Minute))
		}, uid), "not valid yet"},
		"another issuer": {forgery(t, ours, nil, func(c *jwt.Claims) {
			c.Issuer = "https://example.com"
		}, uid), ""},
		"another subject": {forgery(t, ours, nil, func(c *jwt.Claims) {
			c.Subject = "system:serviceaccount:kube-system:admin"
		}, uid), "sub claim"},
		"another key": {forgery(t, jose.SigningKey{Algorithm: jose.ES256, Key: foreign}, nil, nil, uid),
			"not signed by a known key"},
		"our key's name": {forgery(t,
			jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: foreign, KeyID: keyID.(string)}}, nil, nil,
			uid), "not signed by a known key"},
		"a key of its own": {forgery(t, jose.SigningKey{Algorithm: jose.ES256, Key: foreign},
			&jose.SignerOptions{EmbedJWK: true}, nil, uid), "not signed by a known key"},
		"HMAC with the public key": {forgery(t, jose.SigningKey{Algorithm: jose.HS256, Key: public}, nil, nil, uid),
			"invalid bearer token"},
		"alg none": {encode([]byte(`{"alg":"none"}`)) + "." + parts[1] + ".", "invalid bearer token"},
		"alg none, signed": {encode([]byte(`{"alg":"none"}`)) + "." + parts[1] + "." + parts[2],
			"invalid bearer token"},
		"no signature": {parts[0] + "." + parts[1] + ".", "token"},
		"another payload": {parts[0] + "." +
			encode([]byte(strings.Replace(string(must(base64.RawURLEncoding.DecodeString(parts[1]))),
				"default:robot", "default:admin", 1))) + "." + parts[2], "not signed by a known key"},
		"no token": {"nothing", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{t: t, config: s.config, http: s.http}
			s.refusesToken(c.token, c.why)
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestTokenReview_ReturnsTheAudiencesOfAToken(t *testing.T) {
	t.Parallel()
	s, _ := withTokens(t, nil)
	s.account("robot")
	token := s.token("robot", m{"audiences": []any{"vault", "api"}}).token()
	require.Equal(t, []string{"vault"}, s.reviewToken(token, "other", "vault").Audiences)
	require.False(t, s.reviewToken(token, "other").Authenticated)
	s.do(http.MethodPost, reviews, m{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": m{}}).
		refused(http.StatusBadRequest, metav1.StatusReasonBadRequest, "token is required")
	s.bearing(token).get(configMaps).ok(http.StatusOK)
}

func TestServiceAccountToken_LegacyTokenIsValidWhileItsSecretHasIt(t *testing.T) {
	t.Parallel()
	s, key := withTokens(t, nil)
	uid := s.account("robot")
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	require.NoError(t, err)
	sign := func(secret string) string {
		token, err := jwt.Signed(signer).Claims(m{
			"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:robot",
			"kubernetes.io/serviceaccount/namespace":            "default",
			"kubernetes.io/serviceaccount/secret.name":          secret,
			"kubernetes.io/serviceaccount/service-account.name": "robot",
			"kubernetes.io/serviceaccount/service-account.uid":  uid,
		}).Serialize()
		require.NoError(t, err)
		return token
	}
	token := sign("s")
	s.refusesToken(token, "looking up its secret: not found")
	const secrets = "/api/v1/namespaces/default/secrets"
	s.create(secrets, m{
		"apiVersion": "v1", "kind": "Secret", "type": corev1.SecretTypeServiceAccountToken,
		"metadata":   m{"name": "s", "annotations": m{corev1.ServiceAccountNameKey: "robot"}},
		"stringData": m{"token": token},
	})
	today := func() string { return time.Now().UTC().Format(time.DateOnly) }
	before := today()
	require.Equal(t, "system:serviceaccount:default:robot", s.bearing(token).whoami().Username)
	lastUsed := s.get(secrets+"/s").ok(http.StatusOK).at("metadata", "labels", "kubernetes.io/legacy-token-last-used")
	require.Contains(t, []any{before, today()}, lastUsed) // the date may change during the test
	since := s.get("/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking").ok(
		http.StatusOK).at("data", "since")
	require.Contains(t, []any{before, today()}, since)
	s.patch(secrets+"/s", mergePatch, m{"stringData": m{"token": "another"}}).ok(http.StatusOK)
	s.refusesToken(token, "its secret does not hold it any more")
	s.patch(secrets+"/s", mergePatch, m{"stringData": m{"token": token}}).ok(http.StatusOK)
	s.bearing(token).get(configMaps).ok(http.StatusOK)
	s.patch(secrets+"/s", mergePatch,
		m{"metadata": m{"labels": m{"kubernetes.io/legacy-token-invalid-since": "2026-01-01"}}}).ok(http.StatusOK)
	s.refusesToken(token, "its secret has been marked as invalid")
	s.patch(secrets+"/s", mergePatch, m{"metadata": m{"labels": nil}}).ok(http.StatusOK)
	s.bearing(token).get(configMaps).ok(http.StatusOK)
	s.delete(accounts+"/robot", nil).ok(http.StatusOK)
	s.refusesToken(token, "looking up its account: not found")
}

func TestIssuer_PublishesDiscoveryAndKeys(t *testing.T) {
	t.Parallel()
	s, _ := withTokens(t, nil)
	s.account("robot")
	discovery := s.get("/.well-known/openid-configuration").ok(http.StatusOK)
	require.Equal(t, "application/json", discovery.header.Get("Content-Type"))
	require.Equal(t, authn.DefaultIssuer, discovery.at("issuer"))
	require.Equal(t, authn.DefaultIssuer+"/openid/v1/jwks", discovery.at("jwks_uri"))
	require.Equal(t, []any{"ES256"}, discovery.at("id_token_signing_alg_values_supported"))

	answer := s.get("/openid/v1/jwks").ok(http.StatusOK)
	require.Equal(t, "application/jwk-set+json", answer.header.Get("Content-Type"))
	var keys jose.JSONWebKeySet
	require.NoError(t, json.Unmarshal(answer.body, &keys))
	token, err := jwt.ParseSigned(s.token("robot", m{}).token(), []jose.SignatureAlgorithm{jose.ES256})
	require.NoError(t, err)
	require.True(t, keys.Keys[0].IsPublic())
	require.NoError(t, token.Claims(keys, &jwt.Claims{}))
}

func TestTokenRequest_ServesClientGo(t *testing.T) {
	t.Parallel()
	s, _ := withTokens(t, nil)
	s.account("robot")
	req, err := s.typed().CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot",
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](600)},
		}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "system:serviceaccount:default:robot", s.bearing(req.Status.Token).whoami().Username)
}
