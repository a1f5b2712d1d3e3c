package authn

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// Options select the accepted credentials. The zero value accepts none.
type Options struct {
	// ClientCAs sign the certificates of clients.
	ClientCAs CAs
	// KubeletClient is the certificate that the server presents to nodes; nil for none. The server does not accept
	// it as a credential, so that a node cannot make one API server act on another.
	KubeletClient *tls.Certificate
	// RequestHeader accepts front proxies; nil accepts none.
	RequestHeader *RequestHeader
	// TokenFile contains tokens and their users; "" for none.
	TokenFile string
	// ServiceAccounts signs and verifies the tokens of service accounts.
	ServiceAccounts *Issuer
	// BootstrapTokens accepts the tokens of joining nodes.
	BootstrapTokens bool
	// Config has the issuers of other tokens; nil for none. Webhook authenticates tokens with another service; nil
	// for none.
	Config  *ConfigOptions
	Webhook *WebhookOptions
	// NoAnonymous rejects requests without a credential even if none is needed.
	NoAnonymous bool
	// AnonymousPaths, if not empty, are the only paths that accept requests without a credential.
	AnonymousPaths []string
}

// Authentication authenticates requests with every configured kind of credential. It is safe for concurrent use.
type Authentication struct {
	requests   Union
	tokens     tokens
	audiences  []string
	background []func(context.Context)
	metrics    []prometheus.Collector
	anonymous  *User // nil if there is no anonymous user
	// anonymousAt contains the only paths with an anonymous user; nil for all.
	anonymousAt map[string]bool
	// proxied are the headers that only a front proxy may send.
	proxied IdentityHeaders
}

// New returns the configured authenticators, in the order of their use: the first ones need no request
// to another server.
func New(o Options, objects Objects, clock clock.PassiveClock, log *slog.Logger) (*Authentication, error) {
	a := &Authentication{proxied: StandardIdentityHeaders()}
	if o.ServiceAccounts != nil {
		a.audiences = o.ServiceAccounts.Audiences
	}
	if o.RequestHeader != nil {
		a.requests = append(a.requests, frontProxies{o.RequestHeader, clock})
		a.proxied = a.proxied.with(o.RequestHeader.Headers)
	}
	if o.ClientCAs != nil {
		left := prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "apiserver_client_certificate_expiration_seconds",
			Help: "Distribution of the remaining lifetime on the certificate used to authenticate a request.",
			Buckets: []float64{0, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 345600, 604800, 2592000, 7776000,
				15552000, 31104000},
		})
		a.metrics = append(a.metrics, left)
		a.requests = append(a.requests, ClientCertificates{CAs: o.ClientCAs, Clock: clock, Left: left,
			Refused: o.KubeletClient})
	}
	if o.TokenFile != "" {
		file, err := openTokenFile(o.TokenFile, log)
		if err != nil {
			return nil, err
		}
		a.tokens = append(a.tokens, a.forUs(file))
	}
	if o.ServiceAccounts != nil {
		a.tokens = append(a.tokens, newServiceAccountTokens(o.ServiceAccounts, objects, log))
	}
	if o.BootstrapTokens {
		a.tokens = append(a.tokens, a.forUs(bootstrapTokens{objects, clock}))
	}
	if o.Config != nil {
		var ours []string
		if o.ServiceAccounts != nil {
			ours = o.ServiceAccounts.Issuers
		}
		config, err := newJWTConfig(*o.Config, ours, log)
		if err != nil {
			return nil, err
		}
		a.tokens = append(a.tokens, a.forUs(config))
		a.background = append(a.background, config.run)
		a.metrics = append(a.metrics, config.metrics.collectors()...)
		if config.file != nil {
			a.metrics = append(a.metrics, config.file)
		}
	}
	if o.Webhook != nil {
		webhook, err := newWebhook(*o.Webhook, a.audiences, clock)
		if err != nil {
			return nil, err
		}
		a.tokens = append(a.tokens, webhook)
		a.background = append(a.background, webhook.run)
	}
	a.requests = append(a.requests, bearer{tokens: a.tokens, audiences: a.audiences})
	if !o.NoAnonymous {
		a.anonymous = AnonymousUser()
	}
	for _, path := range o.AnonymousPaths {
		if a.anonymousAt == nil {
			a.anonymousAt = map[string]bool{}
		}
		a.anonymousAt[path] = true
	}
	return a, nil
}

// Metrics returns the authenticators' metrics.
func (a *Authentication) Metrics() []prometheus.Collector { return a.metrics }

// Run does the authenticators' background work until ctx ends.
func (a *Authentication) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, run := range a.background {
		running.Go(func() { run(ctx) })
	}
	running.Wait()
}

// Authenticate implements Authenticator. A request without a credential is Anonymous's, if that user is enabled.
// The headers of front proxies are removed from every request: the next server that gets the request would
// trust them.
func (a *Authentication) Authenticate(r *http.Request) (*User, bool, error) {
	user, ok, err := a.requests.Authenticate(r)
	a.proxied.remove(r.Header)
	if !ok && err == nil && a.anonymous != nil && (a.anonymousAt == nil || a.anonymousAt[r.URL.Path]) {
		return a.anonymous, true, nil
	}
	return user, ok, err
}

// AuthenticateToken implements TokenAuthenticator. Without audiences, the API server's audiences apply.
func (a *Authentication) AuthenticateToken(ctx context.Context, token string,
	audiences []string) (*Identity, bool, error) {
	if len(audiences) == 0 {
		audiences = a.audiences
	}
	return a.tokens.AuthenticateToken(ctx, token, audiences)
}

// forUs restricts an authenticator of tokens without audiences: such tokens are intended for the API server alone.
func (a *Authentication) forUs(tokens TokenAuthenticator) TokenAuthenticator {
	return ownAudience{tokens, a.audiences}
}

type ownAudience struct {
	tokens TokenAuthenticator
	ours   []string
}

func (o ownAudience) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, bool, error) {
	requested := meantFor(o.ours, audiences)
	if len(requested) == 0 && len(audiences) > 0 {
		return nil, false, nil
	}
	id, ok, err := o.tokens.AuthenticateToken(ctx, token, audiences)
	if !ok || err != nil {
		return nil, false, err
	}
	return &Identity{User: id.User, Audiences: requested}, true, nil
}
