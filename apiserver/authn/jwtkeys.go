package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/coxswain-dev/coxswain/apiserver/configfile"
)

const (
	// providerTimeout limits a provider's response, and the time that requests wait for it.
	providerTimeout = 10 * time.Second
	// keyPause is the least pause between two fetches of a provider's keys, independently of the number of tokens
	// with unknown keys.
	keyPause = 10 * time.Second
	// maxProviderAnswer limits a provider's response, in bytes, and maxKeys the keys in it.
	maxProviderAnswer = 1 << 20
	maxKeys           = 256
)

// signingAlgs are the accepted algorithms: the asymmetric ones of RFC 7518.
var signingAlgs = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256,
	oidc.PS384, oidc.PS512}

// keySet holds the public keys of a provider, and implements oidc.KeySet. Any client can send tokens that name
// unknown keys. Such tokens cause a new fetch of the keys, but rarely, and tokens with known keys never wait for
// it. run does the fetching.
type keySet struct {
	fetch      func(ctx context.Context) ([]jose.JSONWebKey, error)
	algorithms []jose.SignatureAlgorithm
	now        func() time.Time
	wake       chan struct{} // wakes run; has room for the one fetch that may be due

	mu      sync.RWMutex
	keys    []jose.JSONWebKey
	fetched chan struct{} // closed when the fetch under way has ended; nil without one
	next    time.Time     // the earliest time of the next fetch
	ended   bool          // run has returned: no fetch will end any more
}

func newKeySet(fetch func(ctx context.Context) ([]jose.JSONWebKey, error), algs []string) *keySet {
	k := &keySet{fetch: fetch, now: time.Now, wake: make(chan struct{}, 1)}
	for _, alg := range algs {
		k.algorithms = append(k.algorithms, jose.SignatureAlgorithm(alg))
	}
	return k
}

// set stores the keys of the first fetch.
func (k *keySet) set(keys []jose.JSONWebKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys, k.next = keys, k.now().Add(keyPause)
}

// run fetches keys when refresh requests it, until ctx ends.
func (k *keySet) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.ended = true; k.fetched != nil {
				close(k.fetched)
				k.fetched = nil
			}
			return
		case <-k.wake:
			keys, err := k.fetch(ctx)
			k.mu.Lock()
			if err == nil {
				k.keys = keys
			}
			k.next = k.now().Add(keyPause)
			close(k.fetched)
			k.fetched = nil
			k.mu.Unlock()
		}
	}
}

// refresh requests a fetch of the keys, and returns a channel that is closed when it has ended. It returns nil if
// the keys were fetched within keyPause.
func (k *keySet) refresh() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fetched != nil {
		return k.fetched
	}
	if k.ended || k.now().Before(k.next) {
		return nil
	}
	k.fetched = make(chan struct{})
	k.wake <- struct{}{}
	return k.fetched
}

// VerifySignature implements oidc.KeySet.
func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	signed, err := jose.ParseSigned(token, k.algorithms)
	if err != nil || len(signed.Signatures) != 1 {
		return nil, errBadToken
	}
	if payload, ok := k.verify(signed); ok {
		return payload, nil
	}
	if fetched := k.refresh(); fetched != nil {
		select {
		case <-fetched:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if payload, ok := k.verify(signed); ok {
			return payload, nil
		}
	}
	return nil, errors.New("failed to verify id token signature")
}

func (k *keySet) verify(signed *jose.JSONWebSignature) ([]byte, bool) {
	k.mu.RLock()
	keys := k.keys
	k.mu.RUnlock()
	id := signed.Signatures[0].Header.KeyID
	for i := range keys {
		if id == "" || keys[i].KeyID == id {
			if payload, err := signed.Verify(&keys[i]); err == nil {
				return payload, true
			}
		}
	}
	return nil, false
}

// providerClient sends requests to a provider. Its responses and redirections are limited.
type providerClient struct{ http.Client }

// fetch reads a document. It sends a bearer token, unless that is "".
func (c *providerClient) fetch(ctx context.Context, url, token string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, res.Status)
	}
	content, err := io.ReadAll(io.LimitReader(res.Body, maxProviderAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", url, err)
	case len(content) > maxProviderAnswer:
		return nil, fmt.Errorf("%s answers more than %d bytes", url, maxProviderAnswer)
	}
	return content, nil
}

// get reads a JSON document.
func (c *providerClient) get(ctx context.Context, url string, into any) error {
	content, err := c.fetch(ctx, url, "")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("the answer of %s: %w", url, err)
	}
	return nil
}

// httpsOnly rejects redirections to addresses whose answers could be forged.
func httpsOnly(req *http.Request, via []*http.Request) error {
	switch {
	case req.URL.Scheme != "https":
		return fmt.Errorf("is redirected to %s, which is not https", req.URL.Redacted())
	case len(via) >= 10:
		return errors.New("is redirected ten times")
	}
	return nil
}

// keysURL reads the location of a provider's keys from its configuration, which must name the same issuer.
// https://openid.net/specs/openid-connect-discovery-1_0.html#ProviderConfig
func (c *providerClient) keysURL(ctx context.Context, i *JWTIssuer) (string, error) {
	url := i.DiscoveryURL
	if url == "" {
		url = strings.TrimSuffix(i.URL, "/") + "/.well-known/openid-configuration"
	}
	var doc struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := c.get(ctx, url, &doc); err != nil {
		return "", err
	}
	if doc.Issuer != i.URL {
		return "", fmt.Errorf("%s is the configuration of the issuer %q, not of %q", url, doc.Issuer, i.URL)
	}
	if !strings.HasPrefix(doc.JWKSURI, "https://") {
		return "", fmt.Errorf("%s has keys at %q, which is not https", url, doc.JWKSURI)
	}
	return doc.JWKSURI, nil
}

// keys reads a JWKS document, and returns its hash as well. Keys of an unknown kind are left out (RFC 7517, section
// 5).
func (c *providerClient) keys(ctx context.Context, url string) (keys []jose.JSONWebKey, hash string, err error) {
	var doc json.RawMessage
	if err := c.get(ctx, url, &doc); err != nil {
		return nil, "", err
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(doc, &set); err != nil {
		return nil, "", fmt.Errorf("the answer of %s: %w", url, err)
	}
	if len(set.Keys) > maxKeys {
		return nil, "", fmt.Errorf("%s has more than %d keys", url, maxKeys)
	}
	for _, text := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(text, &key) == nil && key.IsPublic() {
			keys = append(keys, key)
		}
	}
	return keys, configfile.HashOf(doc), nil
}
