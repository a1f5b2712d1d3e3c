package authn_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"
)

// provider is an OpenID provider, over TLS.
type provider struct {
	*httptest.Server
	caFile string
	pem    string
	// asked counts the fetches of its keys. Its answers are withheld while hang is locked.
	asked atomic.Int32
	hang  sync.RWMutex

	mu     sync.Mutex
	key    *ecdsa.PrivateKey
	id     string // the ID of its key
	issuer string // the issuer that its configuration names, "" for its URL
	path   string // the path of its configuration
	extra  []any  // additional keys
	// elsewhere are tokens with claims that other tokens lack, by their paths. They require the token "ours".
	elsewhere map[string]string
}

func startProvider(t testing.TB) *provider {
	t.Helper()
	p := &provider{path: "/.well-known/openid-configuration"}
	p.rotate(t, "k")
	p.Server = httptest.NewTLSServer(http.HandlerFunc(p.serve))
	t.Cleanup(p.Close)
	p.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}))
	p.caFile = write(t, "ca.crt", p.pem)
	return p
}

func (p *provider) serve(w http.ResponseWriter, r *http.Request) {
	p.hang.RLock()
	defer p.hang.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	var answer any
	switch r.URL.Path {
	case p.path:
		issuer := p.issuer
		if issuer == "" {
			issuer = p.URL
		}
		answer = map[string]any{"issuer": issuer, "jwks_uri": p.URL + "/keys"}
	case "/keys":
		p.asked.Add(1)
		key := jose.JSONWebKey{Key: p.key.Public(), KeyID: p.id, Algorithm: "ES256", Use: "sig"}
		answer = map[string]any{"keys": append([]any{key}, p.extra...)}
	default:
		token, ok := p.elsewhere[r.URL.Path]
		if !ok || r.Header.Get("Authorization") != "Bearer ours" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, token)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// rotate replaces the key.
func (p *provider) rotate(t testing.TB, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.key, p.id = key, id
}

func (p *provider) change(edit func(p *provider)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	edit(p)
}

func (p *provider) token(t testing.TB, claims map[string]any) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]any{"iss": p.URL, "aud": "coxswain", "sub": "jane", "exp": time.Now().Add(time.Hour).Unix(),
		"iat": time.Now().Unix()}
	for k, v := range claims {
		all[k] = v
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: p.id}},
		nil)
	require.NoError(t, err)
	token, err := jwt.Signed(signer).Claims(all).Serialize()
	require.NoError(t, err)
	return token
}
