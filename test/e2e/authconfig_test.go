//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// login is an OpenID provider, over TLS.
type login struct {
	*httptest.Server
	key *ecdsa.PrivateKey
}

func certificateOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func startLogin(t *testing.T) *login {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	l := &login{key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": l.URL, "jwks_uri": l.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k",
			Algorithm: "ES256", Use: "sig"}}})
	})
	l.Server = httptest.NewTLSServer(mux)
	t.Cleanup(l.Close)
	return l
}

func (l *login) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": l.URL, "aud": "coxswain", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range claims {
		all[name] = value
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: l.key, KeyID: "k"}},
		nil)
	require.NoError(t, err)
	token, err := jwt.Signed(signer).Claims(all).Serialize()
	require.NoError(t, err)
	return token
}

// issuer returns the provider in a configuration, with the fields after issuer.
func (l *login) issuer(fields string) string {
	return fmt.Sprintf("- issuer: {url: %q, audiences: [coxswain], certificateAuthority: %q}\n%s", l.URL,
		certificateOf(l.Server), fields)
}

// advisor is a server for authorization webhooks. It records all requests that pass its matchConditions.
type advisor struct {
	*httptest.Server
	kubeconfig string
	asked      atomic.Int32
	answer     atomic.Pointer[authorizationv1.SubjectAccessReviewStatus] // nil: it fails
}

func startAdvisor(t *testing.T, says *authorizationv1.SubjectAccessReviewStatus) *advisor {
	t.Helper()
	a := &advisor{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	a.answer.Store(says)
	a.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.asked.Add(1)
		var review authorizationv1.SubjectAccessReview
		answer := a.answer.Load()
		if answer == nil || json.NewDecoder(r.Body).Decode(&review) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		review.Status = *answer
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(a.Close)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: a.URL, CertificateAuthorityData: certificateOf(a.Server)}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	require.NoError(t, clientcmd.WriteToFile(*config, a.kubeconfig))
	return a
}

// webhook returns the server in a configuration.
func (a *advisor) webhook(name, policy, condition string) string {
	return fmt.Sprintf("- type: Webhook\n  name: %s\n  webhook: {timeout: 5s, subjectAccessReviewVersion: v1, "+
		"matchConditionSubjectAccessReviewVersion: v1, failurePolicy: %s, cacheAuthorizedRequests: false, "+
		"cacheUnauthorizedRequests: false, connectionInfo: {type: KubeConfigFile, kubeConfigFile: %q}, "+
		"matchConditions: [{expression: %q}]}\n", name, policy, a.kubeconfig, condition)
}

// reloads returns the number of reloads of a file by result, success or failure.
func (c *cluster) reloads(of, status string) (n int) {
	_, body := c.get("/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "apiserver_"+of+"_config_controller_automatic_reloads_total") &&
			strings.Contains(line, `status="`+status+`"`) {
			_, _ = fmt.Sscan(line[strings.LastIndex(line, " "):], &n)
		}
	}
	return n
}

// reconfigure replaces a configuration and waits until it is in force, or rejected.
func (c *cluster) reconfigure(of, file, text, status string) {
	c.t.Helper()
	before := c.reloads(of, status)
	require.NoError(c.t, os.WriteFile(file, []byte(text), 0o600))
	eventually(c.t, time.Minute, "the file is read: "+status, func() bool { return c.reloads(of, status) > before })
}

// with runs kubectl with a token and without other credentials.
func (c *cluster) with(token string, args ...string) (stdout, stderr string, err error) {
	c.t.Helper()
	return c.try(kubectl, append([]string{"--kubeconfig", os.DevNull, "--server", c.config.Host,
		"--certificate-authority", c.authority(), "--token", token}, args...)...)
}

// authority writes the CA of the server's certificate to a file.
func (c *cluster) authority() string {
	file := filepath.Join(c.home, "ca.crt")
	require.NoError(c.t, os.WriteFile(file, c.config.CAData, 0o600))
	return file
}

const (
	authenticationHeader = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n"
	authorizationHeader  = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n"
	nodeAndRBAC          = "- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n"
)

// TestAuthenticationConfig_AddsAndRemovesIssuers logs in with tokens of two issuers by kubectl, while the file changes.
func TestAuthenticationConfig_AddsAndRemovesIssuers(t *testing.T) {
	t.Parallel()
	corp, ci := startLogin(t), startLogin(t)
	ofCorp := corp.issuer(`  claimValidationRules:
  - {claim: hd, requiredValue: example.com}
  claimMappings:
    username: {expression: '"corp:" + claims.email + (claims.email_verified ? "" : "?")'}
    groups: {expression: 'dyn(claims.roles).map(r, "corp:" + r)'}
    extra: [{key: example.com/tenant, valueExpression: claims.tenant}]
  userValidationRules:
  - {expression: "!user.groups.exists(g, g == 'corp:guests')", message: guests stay outside}
`)
	ofCI := ci.issuer(`  claimMappings: {username: {claim: sub, prefix: "ci:"}}` + "\n")
	jane := map[string]any{"email": "jane@example.com", "email_verified": true, "hd": "example.com", "tenant": "blue",
		"roles": []string{"devs"}}
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	require.NoError(t, os.WriteFile(file, []byte(authenticationHeader+ofCorp), 0o600))
	c := up(t, dataDir(t), "--nodes", "0", "--authentication-config", file)
	token, robot := corp.token(t, jane), ci.token(t, map[string]any{"sub": "robot"})
	eventually(t, time.Minute, "the issuer is known", func() bool {
		_, _, err := c.with(token, "auth", "whoami")
		return err == nil
	})
	out, _, err := c.with(token, "auth", "whoami")
	require.NoError(t, err)
	require.Regexp(t, `Username +corp:jane@example.com\nGroups +\[corp:devs system:authenticated\]\n`+
		`Extra: example.com/tenant +\[blue\]`, out)
	denied := func(token, words string) {
		t.Helper()
		_, stderr, err := c.with(token, "auth", "whoami")
		require.Error(t, err)
		require.Contains(t, stderr, words)
	}
	const loggedOut = "You must be logged in to the server"
	denied(robot, loggedOut)
	jane["roles"] = []string{"guests"}
	denied(corp.token(t, jane), loggedOut)
	c.run(kubectl, "create", "rolebinding", "robot", "--clusterrole=view", "--user=ci:robot")

	c.reconfigure("authentication", file, authenticationHeader+ofCorp+ofCI, "success")
	out, stderr, err := c.with(robot, "auth", "whoami")
	require.NoError(t, err, stderr)
	require.Regexp(t, `Username +ci:robot`, out)
	_, stderr, err = c.with(robot, "get", "pods")
	require.NoError(t, err, stderr)
	_, stderr, err = c.with(token, "get", "pods")
	require.Error(t, err)
	require.Contains(t, stderr, `User "corp:jane@example.com" cannot list resource "pods"`)

	c.reconfigure("authentication", file, authenticationHeader+ofCI+ofCI, "failure")
	_, stderr, err = c.with(token, "auth", "whoami")
	require.NoError(t, err, stderr)
	eventually(t, time.Minute, "the fault is logged", func() bool {
		return strings.Contains(c.server.out.String(), "jwt[1].issuer.url: Duplicate value")
	})

	c.reconfigure("authentication", file, authenticationHeader+ofCI, "success")
	denied(token, loggedOut)
	_, stderr, err = c.with(robot, "get", "pods")
	require.NoError(t, err, stderr)
}

// TestAuthorizationConfig_AddsAndRemovesWebhooks configures two webhooks before RBAC, each for a part of the requests.
func TestAuthorizationConfig_AddsAndRemovesWebhooks(t *testing.T) {
	t.Parallel()
	guard := startAdvisor(t, &authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "the vault is closed"})
	friend := startAdvisor(t, &authorizationv1.SubjectAccessReviewStatus{Allowed: true})
	webhookWith := func(policy string) string {
		return guard.webhook("guard", policy, "has(request.resourceAttributes) && "+
			"request.resourceAttributes.resource == 'secrets' && request.user == 'jane'")
	}
	allowed := friend.webhook("friend", "NoOpinion", "request.user == 'jane' && has(request.resourceAttributes)")
	file := filepath.Join(t.TempDir(), "authorization.yaml")
	require.NoError(t, os.WriteFile(file, []byte(authorizationHeader+webhookWith("Deny")+allowed+nodeAndRBAC), 0o600))
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	require.NoError(t, os.WriteFile(tokens, []byte("jane-token,jane,1\nbob-token,bob,2\n"), 0o600))
	c := up(t, dataDir(t), "--nodes", "1", "--authorization-config", file, "--token-auth-file", tokens)
	c.nodesReady(1) // Nodes and controllers are authorized besides the webhooks
	can := func(user, words string, args ...string) {
		t.Helper()
		_, stderr, err := c.with(user+"-token", args...)
		if words == "" {
			require.NoError(t, err, stderr)
			return
		}
		require.Error(t, err)
		require.Contains(t, stderr, words)
	}
	can("jane", "the vault is closed", "get", "secrets")
	require.EqualValues(t, 1, guard.asked.Load())
	require.Zero(t, friend.asked.Load(), "the first webhook that decides ends the chain")
	can("jane", "", "get", "pods")
	require.EqualValues(t, 1, guard.asked.Load())
	require.Positive(t, friend.asked.Load())
	calls := friend.asked.Load()
	can("bob", `User "bob" cannot list resource "pods"`, "get", "pods")
	require.Equal(t, calls, friend.asked.Load(), "its condition excludes the user")
	c.run(kubectl, "create", "rolebinding", "bob", "--clusterrole=view", "--user=bob")
	can("bob", "", "get", "pods")

	// If the guard fails, its failure policy decides.
	guard.answer.Store(nil)
	can("jane", "Forbidden", "get", "secrets")
	c.reconfigure("authorization", file, authorizationHeader+webhookWith("NoOpinion")+allowed+nodeAndRBAC, "success")
	can("jane", "", "get", "secrets")
	// A file without RBAC is rejected, and so is an unreadable one.
	c.reconfigure("authorization", file, authorizationHeader+allowed, "failure")
	c.reconfigure("authorization", file, "authorizers: 5", "failure")
	can("jane", "", "get", "secrets")
	can("bob", "", "get", "pods")
	c.reconfigure("authorization", file, authorizationHeader+nodeAndRBAC, "success")
	can("jane", `User "jane" cannot list resource "pods"`, "get", "pods")
	can("bob", "", "get", "pods")
}
