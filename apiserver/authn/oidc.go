package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
)

// OIDCOptions select the provider whose ID tokens are accepted, as the flags --oidc-* do.
type OIDCOptions struct {
	// IssuerURL must be https. ClientID is the audience that tokens must name.
	IssuerURL, ClientID string
	// UsernameClaim is "sub" by default. UsernamePrefix is the issuer and "#" where it is ""
	// and the claim is not "email"; "-" is none.
	UsernameClaim, UsernamePrefix string
	// GroupsClaim, when not "", names a claim that is a string or a list of strings.
	GroupsClaim, GroupsPrefix string
	// RequiredClaims must be in the token with these values.
	RequiredClaims map[string]string
	// CAFile has the CAs of the issuer's certificate; "" means the system's.
	CAFile string
	// SigningAlgs are the algorithms accepted: RS256 by default. Only asymmetric ones may be.
	SigningAlgs []string
}

// oidcTimeout is how long the issuer may take for one response; oidcRetry is the pause before a retry.
const (
	oidcTimeout = 30 * time.Second
	oidcRetry   = 10 * time.Second
)

// oidcTokens authenticates by ID tokens of an OpenID provider. The provider's configuration is fetched
// in the background: until then its tokens are rejected, and nothing waits for it.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#openid-connect-tokens
type oidcTokens struct {
	OIDCOptions
	log      *slog.Logger
	client   *http.Client
	verifier atomic.Pointer[oidc.IDTokenVerifier]
}

func newOIDC(o OIDCOptions, log *slog.Logger) (*oidcTokens, error) {
	if u, err := url.Parse(o.IssuerURL); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("authn: OIDC issuer %q is not an https URL", o.IssuerURL)
	}
	if o.ClientID == "" {
		return nil, errors.New("authn: an OIDC issuer needs a client ID")
	}
	if o.UsernameClaim == "" {
		o.UsernameClaim = "sub"
	}
	switch {
	case o.UsernamePrefix == "-":
		o.UsernamePrefix = ""
	case o.UsernamePrefix == "" && o.UsernameClaim != "email":
		o.UsernamePrefix = o.IssuerURL + "#"
	}
	if len(o.SigningAlgs) == 0 {
		o.SigningAlgs = []string{oidc.RS256}
	}
	allowed := []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256,
		oidc.PS384, oidc.PS512}
	for _, alg := range o.SigningAlgs {
		if !slices.Contains(allowed, alg) {
			return nil, fmt.Errorf("authn: OIDC signing algorithm %q is none of %s", alg, strings.Join(allowed, ", "))
		}
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if o.CAFile != "" {
		pool, err := readPool(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("authn: OIDC: %w", err)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &oidcTokens{OIDCOptions: o, log: log, client: &http.Client{Transport: transport, Timeout: oidcTimeout}}, nil
}

func readPool(file string) (*x509.CertPool, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading CAs: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("%s has no certificates", file)
	}
	return pool, nil
}

// run requests the provider's configuration until it has answered, or ctx has ended.
func (t *oidcTokens) run(ctx context.Context) {
	defer t.client.CloseIdleConnections()
	// The verifier fetches keys later, when a token names one that it does not know.
	ctx = oidc.ClientContext(ctx, t.client)
	for failed := ""; ; {
		provider, err := oidc.NewProvider(ctx, t.IssuerURL)
		if err == nil {
			t.verifier.Store(provider.VerifierContext(ctx,
				&oidc.Config{ClientID: t.ClientID, SupportedSigningAlgs: t.SigningAlgs}))
			<-ctx.Done()
			return
		}
		if ctx.Err() == nil && err.Error() != failed {
			failed = err.Error()
			t.log.Warn("the OIDC issuer does not answer; its tokens are refused until it does", "issuer",
				t.IssuerURL, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(oidcRetry):
		}
	}
}

// AuthenticateToken implements TokenAuthenticator.
func (t *oidcTokens) AuthenticateToken(ctx context.Context, token string, _ []string) (*Identity, bool, error) {
	if claimedIssuer(token) != t.IssuerURL {
		return nil, false, nil
	}
	verifier := t.verifier.Load()
	if verifier == nil {
		return nil, false, errors.New("oidc: the issuer is not known yet")
	}
	id, err := verifier.Verify(ctx, token)
	if err != nil {
		return nil, false, fmt.Errorf("oidc: %w", err)
	}
	claims := map[string]json.RawMessage{}
	if err := id.Claims(&claims); err != nil {
		return nil, false, errors.New("oidc: claims cannot be read")
	}
	user, err := t.user(claims)
	if err != nil {
		return nil, false, err
	}
	return &Identity{User: authenticated(user)}, true, nil
}

func (t *oidcTokens) user(claims map[string]json.RawMessage) (*User, error) {
	name, err := claim[string](claims, t.UsernameClaim)
	if err != nil || name == "" {
		return nil, fmt.Errorf("oidc: the token has no claim %q with a name", t.UsernameClaim)
	}
	// An address that the provider has not verified is only the user's own claim.
	if _, told := claims["email_verified"]; t.UsernameClaim == "email" && told {
		if verified, err := claim[bool](claims, "email_verified"); err != nil || !verified {
			return nil, errors.New("oidc: the email address is not verified")
		}
	}
	for key, value := range t.RequiredClaims {
		if is, err := claim[string](claims, key); err != nil || is != value {
			return nil, fmt.Errorf("oidc: the token's claim %q is not as required", key)
		}
	}
	u := &User{Name: t.UsernamePrefix + name}
	if id, err := claim[string](claims, "jti"); err == nil && id != "" {
		u.Extra = map[string][]string{ExtraCredentialID: {"JTI=" + id}}
	}
	if _, told := claims[t.GroupsClaim]; t.GroupsClaim == "" || !told {
		return u, nil
	}
	groups, err := claim[[]string](claims, t.GroupsClaim)
	if err != nil {
		one, err := claim[string](claims, t.GroupsClaim)
		if err != nil {
			return nil, fmt.Errorf("oidc: claim %q has no groups", t.GroupsClaim)
		}
		groups = []string{one}
	}
	for _, group := range groups {
		u.Groups = append(u.Groups, t.GroupsPrefix+group)
	}
	return u, nil
}

func claim[V any](claims map[string]json.RawMessage, name string) (v V, err error) {
	raw, ok := claims[name]
	if !ok {
		return v, fmt.Errorf("no claim %q", name)
	}
	return v, json.Unmarshal(raw, &v)
}
