package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/coxswain-dev/coxswain/apiserver/configfile"
)

// providerRetry is the pause before a provider that has not answered is asked again.
const providerRetry = 10 * time.Second

// jwtIssuer authenticates the tokens of one issuer. The provider's configuration and keys are fetched in the
// background. Until then its tokens are refused, and no request waits for them.
type jwtIssuer struct {
	config JWTAuthenticator
	claimExpressions
	client *providerClient
	keys   *keySet
	// hash is the hash of the issuer's URL in metrics.
	hash    string
	metrics *jwtMetrics
	log     *slog.Logger
	verify  *oidc.IDTokenVerifier

	keysURL atomic.Pointer[string] // the location of the provider's keys; set before answered is closed
	// answered is closed when the provider's keys are known.
	answered chan struct{}
	stop     context.CancelFunc
	// failed receives the error of the first attempt to reach the provider; it holds one.
	failed chan error
}

// newJWTIssuer returns an issuer with a valid configuration. run must be called for it.
func newJWTIssuer(config JWTAuthenticator, x *claimExpressions, algs []string, metrics *jwtMetrics,
	log *slog.Logger) *jwtIssuer {
	i := &jwtIssuer{config: config, claimExpressions: *x, log: log, answered: make(chan struct{}),
		failed: make(chan error, 1), client: newProviderClient(config.Issuer.CertificateAuthority),
		hash: configfile.HashOf([]byte(config.Issuer.URL)), metrics: metrics}
	i.keys = newKeySet(func(ctx context.Context) ([]jose.JSONWebKey, error) {
		return i.fetchKeys(ctx, *i.keysURL.Load())
	}, algs)
	// The library supports only one audience; valid checks them instead.
	i.verify = oidc.NewVerifier(config.Issuer.URL, i.keys,
		&oidc.Config{SkipClientIDCheck: true, SupportedSigningAlgs: algs})
	return i
}

func newProviderClient(authorities string) *providerClient {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if authorities != "" {
		transport.TLSClientConfig.RootCAs = x509.NewCertPool()
		transport.TLSClientConfig.RootCAs.AppendCertsFromPEM([]byte(authorities))
	}
	return &providerClient{http.Client{Transport: transport, CheckRedirect: httpsOnly}}
}

// run contacts the provider until it has answered, and then fetches its keys as they are needed, until ctx ends.
func (i *jwtIssuer) run(ctx context.Context) {
	defer i.client.CloseIdleConnections()
	for failed := ""; ; {
		err := i.connect(ctx)
		if err == nil {
			break
		}
		select {
		case i.failed <- err:
		default:
		}
		if ctx.Err() == nil && err.Error() != failed {
			failed = err.Error()
			i.log.Warn("token issuer does not answer; its tokens are refused until it does", "issuer",
				i.config.Issuer.URL, "err", err)
		}
		pause := time.NewTimer(providerRetry)
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
	close(i.answered)
	i.keys.run(ctx)
}

func (i *jwtIssuer) connect(ctx context.Context) error {
	url, err := i.client.keysURL(ctx, &i.config.Issuer)
	if err != nil {
		return err
	}
	keys, err := i.fetchKeys(ctx, url)
	if err != nil {
		return err
	}
	i.keysURL.Store(&url)
	i.keys.set(keys)
	return nil
}

func (i *jwtIssuer) fetchKeys(ctx context.Context, url string) ([]jose.JSONWebKey, error) {
	keys, hash, err := i.client.keys(ctx, url)
	i.metrics.fetchedKeys(i.hash, hash, err)
	return keys, err
}

// wait returns nil when the provider has answered, or the reason why it has not.
func (i *jwtIssuer) wait(ctx context.Context) (err error) {
	select {
	case <-i.answered:
		return nil
	case err = <-i.failed:
	case <-ctx.Done():
		err = errors.New("it does not answer")
	}
	return fmt.Errorf("issuer %s: %w", i.config.Issuer.URL, err)
}

// authenticate returns the user of a token that claims this issuer, and the token's expiration.
func (i *jwtIssuer) authenticate(ctx context.Context, token string) (*User, time.Time, error) {
	select {
	case <-i.answered:
	default:
		return nil, time.Time{}, errors.New("oidc: the issuer is not known yet")
	}
	claims, err := i.valid(ctx, token)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("oidc: %w", err)
	}
	if err := i.expand(ctx, claims); err != nil {
		return nil, time.Time{}, fmt.Errorf("oidc: could not expand distributed claims: %w", err)
	}
	user, err := i.user(ctx, claims)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("oidc: %w", err)
	}
	return authenticated(user), claims.expiry, nil
}

// valid returns the claims of a token that the issuer has signed for one of its audiences.
func (i *jwtIssuer) valid(ctx context.Context, token string) (*claimSet, error) {
	id, err := i.verify.Verify(ctx, token)
	if err != nil {
		return nil, fmt.Errorf("verify token: %w", err)
	}
	if !slices.ContainsFunc(i.config.Issuer.Audiences, func(a string) bool { return slices.Contains(id.Audience, a) }) {
		return nil, fmt.Errorf("expected audience in %q got %q", i.config.Issuer.Audiences, id.Audience)
	}
	claims := &claimSet{expiry: id.Expiry}
	if err := id.Claims(&claims.raw); err != nil {
		return nil, errors.New("claims cannot be read")
	}
	return claims, claims.check()
}

// jwtTokens authenticates the tokens of the configured issuers.
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#json-web-token-authentication
type jwtTokens struct {
	algs    []string
	metrics *jwtMetrics
	log     *slog.Logger
	now     func() time.Time
	inForce atomic.Pointer[issuerSet]
	// running counts the issuers' background goroutines.
	running sync.WaitGroup
}

// issuerSet holds the issuers of one configuration by their URLs, and a cache of the tokens that were valid under
// it. A new configuration gets a new cache, so that a token cannot keep a user that a former configuration gave it.
type issuerSet struct {
	byURL map[string]*jwtIssuer
	users *cache[*User]
}

const (
	// maxJWT limits a token, in bytes: a larger one is not examined.
	maxJWT = 128 << 10
	// userTTL is how long a token's user is cached, as in kube-apiserver, and cachedUsers how many users are.
	userTTL     = 10 * time.Second
	cachedUsers = 4096
)

// AuthenticateToken implements TokenAuthenticator.
func (t *jwtTokens) AuthenticateToken(ctx context.Context, token string, _ []string) (*Identity, bool, error) {
	set := t.inForce.Load()
	if len(set.byURL) == 0 || len(token) > maxJWT {
		return nil, false, nil
	}
	key, now := digestOf(token), t.now()
	if user, ok := set.users.get(key, now); ok {
		return &Identity{User: user}, true, nil
	}
	issuer := set.byURL[providerOf(token)]
	if issuer == nil {
		return nil, false, nil
	}
	began := time.Now()
	user, expiry, err := issuer.authenticate(ctx, token)
	t.metrics.authenticated(issuer.hash, time.Since(began), err)
	if err != nil {
		return nil, false, err
	}
	if until := now.Add(userTTL); until.Before(expiry) {
		expiry = until
	}
	set.users.put(key, user, expiry)
	return &Identity{User: user}, true, nil
}

// providerOf returns the URL of the issuer that a token claims. Google has two of them.
// https://openid.net/specs/openid-connect-core-1_0.html#GoogleIss
func providerOf(token string) string {
	issuer := claimedIssuer(token)
	if issuer == "accounts.google.com" {
		return "https://accounts.google.com"
	}
	return issuer
}
