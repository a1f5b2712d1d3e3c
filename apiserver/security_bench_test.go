package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
)

// guarded is a server without a listener, and requests of a user with a certificate and with a token.
type guarded struct {
	*Server
	handler         http.Handler
	byCert, byToken *http.Request
	bearer          []string // the Authorization header of byToken
	admin           *x509.Certificate
	create          authz.Attributes
	admitted        *request
	pod             *corev1.Pod
}

// newGuarded starts a server with a thousand role bindings; one is for the user.
func newGuarded(b *testing.B) *guarded {
	ctx := b.Context()
	backend, err := etcd.StartEmbedded(ctx, etcd.EmbeddedOptions{Dir: b.TempDir(), Unsafe: true})
	require.NoError(b, err)
	b.Cleanup(func() { _ = backend.Close() })
	store, err := storage.Open(ctx, backend, storage.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { _ = store.Close() })
	ca, err := pki.NewCA()
	require.NoError(b, err)
	key, err := pki.NewKey()
	require.NoError(b, err)
	issuer, err := authn.NewIssuer(authn.IssuerOptions{SigningKey: key})
	require.NoError(b, err)
	s, err := New(ctx, Options{Store: store, Registry: api.NewRegistry(builtin.Kinds()...),
		Authentication: authn.Options{
			ClientCAs: authn.FixedCAs(ca.Pool()), ServiceAccounts: issuer,
		}})
	require.NoError(b, err)
	g := &guarded{Server: s, handler: s.Handler()}
	leaf := func(user string, groups ...string) *x509.Certificate {
		text, _, err := ca.Client(user, groups...)
		require.NoError(b, err)
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		require.NoError(b, err)
		return cert
	}
	g.admin = leaf("admin", "system:masters")
	post := func(path, body string) string {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{g.admin}}
		w := httptest.NewRecorder()
		g.handler.ServeHTTP(w, r)
		require.Equal(b, http.StatusCreated, w.Code, w.Body.String())
		return w.Body.String()
	}
	const binding = `{"metadata":{"name":"b-%d"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"edit"},` +
		`"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-%d"},{"kind":"ServiceAccount","namespace":"default","name":"robot-%d"}]}`
	for i := range 1000 {
		post("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", fmt.Sprintf(binding, i, i, i))
	}
	post("/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"default"}}`)
	post("/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"robot-500"}}`)
	account, err := s.cluster.Newest(ctx, corev1.SchemeGroupVersion.WithKind("ServiceAccount"), "default", "robot-500")
	require.NoError(b, err)
	token, err := issuer.Sign(authn.TokenRequest{Account: account.(*corev1.ServiceAccount),
		Audiences: issuer.Audiences, IssuedAt: time.Now(), Lifetime: time.Hour})
	require.NoError(b, err)

	g.byCert = httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/default/pods", nil)
	g.byCert.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf("user-500")}}
	g.byCert = g.byCert.WithContext(authn.WithConnection(g.byCert.Context(), nil))
	g.byToken = httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/default/pods", nil)
	g.bearer = []string{"Bearer " + token}

	res := s.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("Pod"))
	g.create = authz.Attributes{Verb: "create", Version: "v1", Resource: "pods", Namespace: "default"}
	g.admitted = &request{Request: g.byToken, verb: "create", res: res, namespace: "default", name: "p"}
	g.pod = &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
	g.pod.Name, g.pod.Namespace = "p", "default"
	encoding.SetDefaults(res, g.pod)
	return g
}

func (g *guarded) authenticated(b *testing.B, r *http.Request) *authn.User {
	if r == g.byToken {
		r.Header["Authorization"] = g.bearer // authentication removes the header
	}
	user, ok, err := g.authn.Authenticate(r)
	if err != nil || !ok || !user.Authenticated() {
		b.Fatal(ok, err)
	}
	return user
}

func (g *guarded) authorized(b *testing.B, user *authn.User) {
	a := g.create
	a.User = user
	if d, reason, err := g.authorizer.Authorize(context.Background(), &a); d != authz.Allow {
		b.Fatal(reason, err)
	}
}

func (g *guarded) admits(b *testing.B, user *authn.User) {
	ctx := authn.WithUser(context.Background(), user)
	r := *g.admitted
	r.Request = r.WithContext(ctx)
	a := g.attributes(newWrite(&r, nil), admission.Create, g.pod.DeepCopy(), nil)
	if err := g.admission.Mutate(ctx, &a); err != nil {
		b.Fatal(err)
	}
	if err := g.Server.admission.Validate(ctx, &a); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSecurity measures authentication, authorization and, for the creation of a pod, admission, with a thousand
// role bindings.
func BenchmarkSecurity(b *testing.B) {
	g := newGuarded(b)
	user := g.authenticated(b, g.byToken)
	for _, c := range []struct {
		name string
		f    func()
	}{
		{"authenticate/certificate", func() { g.authenticated(b, g.byCert) }},
		{"authenticate/token", func() { g.authenticated(b, g.byToken) }},
		{"authorize", func() { g.authorized(b, user) }},
		{"admit a pod", func() { g.admits(b, user) }},
		{"all/certificate", func() { u := g.authenticated(b, g.byCert); g.authorized(b, u); g.admits(b, u) }},
		{"all/token", func() { u := g.authenticated(b, g.byToken); g.authorized(b, u); g.admits(b, u) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.f()
			}
		})
	}
}
