package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
)

// signed returns a key with this ID and a token that it has signed.
func signed(t *testing.T, id string) (jose.JSONWebKey, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}},
		nil)
	require.NoError(t, err)
	object, err := signer.Sign([]byte(id))
	require.NoError(t, err)
	token, err := object.CompactSerialize()
	require.NoError(t, err)
	return jose.JSONWebKey{Key: key.Public(), KeyID: id}, token
}

// A new key is fetched once for all tokens that wait for it. A token with a known key does not wait. A failed fetch
// leaves the known keys.
func TestKeySet_FetchesOnceForAllThatWait(t *testing.T) {
	t.Parallel()
	oldKey, old := signed(t, "old")
	newKey, fresh := signed(t, "new")
	_, forged := signed(t, "new")
	var fetches, clock atomic.Int64
	began, answer := make(chan struct{}, 1), make(chan error)
	k := newKeySet(func(context.Context) ([]jose.JSONWebKey, error) {
		fetches.Add(1)
		began <- struct{}{}
		return []jose.JSONWebKey{newKey}, <-answer
	}, []string{oidc.ES256})
	k.now = func() time.Time { return time.Unix(clock.Load(), 0) }
	k.set([]jose.JSONWebKey{oldKey})
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { k.run(ctx) })
	defer func() { cancel(); run.Wait() }()

	_, err := k.VerifySignature(t.Context(), fresh)
	require.Error(t, err)
	require.Zero(t, fetches.Load(), "the keys were fetched a moment ago")
	clock.Add(int64(keyPause / time.Second))

	canceled, leave := context.WithCancel(t.Context())
	leave()
	_, err = k.VerifySignature(canceled, fresh)
	require.ErrorIs(t, err, context.Canceled, "a request that ends does not wait")
	<-began
	results := make(chan error, 10)
	for range cap(results) {
		go func() {
			_, err := k.VerifySignature(t.Context(), fresh)
			results <- err
		}()
	}
	payload, err := k.VerifySignature(t.Context(), old)
	require.NoError(t, err)
	require.Equal(t, "old", string(payload))
	answer <- errors.New("no")
	for range cap(results) {
		require.Error(t, <-results)
	}
	require.EqualValues(t, 1, fetches.Load())
	_, err = k.VerifySignature(t.Context(), old)
	require.NoError(t, err)

	clock.Add(int64(keyPause / time.Second))
	go func() { <-began; answer <- nil }()
	payload, err = k.VerifySignature(t.Context(), fresh)
	require.NoError(t, err)
	require.Equal(t, "new", string(payload))
	_, err = k.VerifySignature(t.Context(), old)
	require.Error(t, err, "the key was withdrawn")
	_, err = k.VerifySignature(t.Context(), forged)
	require.Error(t, err)
	require.EqualValues(t, 2, fetches.Load())

	cancel()
	run.Wait()
	clock.Add(int64(keyPause / time.Second))
	_, err = k.VerifySignature(t.Context(), forged)
	require.Error(t, err, "nobody waits for an issuer that has ended")
}

func TestProviderClient_LimitsAnswers(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	var keys string
	provider := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/large":
			_, _ = w.Write([]byte(`"` + strings.Repeat("x", maxProviderAnswer) + `"`))
		case "/plain":
			http.Redirect(w, r, plain.URL, http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/keys":
			_, _ = w.Write([]byte(keys))
		case "/downgrade/.well-known/openid-configuration":
			_, _ = w.Write([]byte(`{"issuer": "https://` + r.Host + `/downgrade", "jwks_uri": "http://keys"}`))
		default:
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer provider.Close()
	c := &providerClient{*provider.Client()}
	c.CheckRedirect = httpsOnly
	for path, words := range map[string]string{
		"/large": "more than 1048576 bytes", "/plain": "which is not https", "/loop": "redirected ten times",
		"/": "418",
	} {
		var into any
		require.ErrorContains(t, c.get(t.Context(), provider.URL+path, &into), words, path)
	}
	_, err := c.keysURL(t.Context(), &JWTIssuer{URL: provider.URL + "/downgrade"})
	require.ErrorContains(t, err, "which is not https")

	keys = `{"keys": [` + strings.Repeat(`{},`, maxKeys) + `{}]}`
	_, _, err = c.keys(t.Context(), provider.URL+"/keys")
	require.ErrorContains(t, err, "more than 256 keys")
	key, _ := signed(t, "good")
	text, err := key.MarshalJSON()
	require.NoError(t, err)
	keys = `{"keys": [{"kty": "new"}, {"kty": "oct", "k": "AAAA"}, ` + string(text) + `]}`
	got, _, err := c.keys(t.Context(), provider.URL+"/keys")
	require.NoError(t, err)
	require.Len(t, got, 1, "keys of another sort, and secret ones, are left out")
	require.Equal(t, "good", got[0].KeyID)
}
