package authn

import (
	"context"
	"net/http"
)

// Options say which credentials are accepted. The zero value accepts none.
type Options struct {
	// ClientCAs sign the certificates of clients.
	ClientCAs CAs
	// ServiceAccounts signs and knows the tokens of service accounts.
	ServiceAccounts *Issuer
}

// Authentication finds out who makes a request, by every sort of credential that was
// configured. It is safe for concurrent use.
type Authentication struct {
	requests  Union
	tokens    tokens
	audiences []string
}

// New makes the list of authenticators, in the order in which they are asked: first those
// that need no look at anything else.
func New(o Options, objects Objects) *Authentication {
	a := &Authentication{}
	if o.ServiceAccounts != nil {
		a.audiences = o.ServiceAccounts.Audiences
	}
	if o.ClientCAs != nil {
		a.requests = append(a.requests, ClientCertificates{CAs: o.ClientCAs})
	}
	if o.ServiceAccounts != nil {
		a.tokens = append(a.tokens, newServiceAccountTokens(o.ServiceAccounts, objects))
	}
	a.requests = append(a.requests, bearer{tokens: a.tokens, audiences: a.audiences})
	return a
}

// Authenticate implements Authenticator.
func (a *Authentication) Authenticate(r *http.Request) (*User, bool, error) {
	return a.requests.Authenticate(r)
}

// AuthenticateToken implements TokenAuthenticator. No audiences are those of the API server.
func (a *Authentication) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, bool, error) {
	if len(audiences) == 0 {
		audiences = a.audiences
	}
	return a.tokens.AuthenticateToken(ctx, token, audiences)
}
