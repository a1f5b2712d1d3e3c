package authn

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
)

// TokenAuthenticator returns the user of a bearer token. It is safe for concurrent use.
type TokenAuthenticator interface {
	// AuthenticateToken returns ok for a valid token that is intended for at least one of the audiences. A token of
	// another kind is neither ok nor an error; err is the reason why a token of this kind is not valid.
	AuthenticateToken(ctx context.Context, token string, audiences []string) (id *Identity, ok bool, err error)
}

// Identity is the content of a token: its user, and the requested audiences that it is intended for.
type Identity struct {
	User      *User
	Audiences []string
}

// tokens tries its elements in turn, as Union does.
type tokens []TokenAuthenticator

func (t tokens) AuthenticateToken(ctx context.Context, token string, audiences []string) (*Identity, bool, error) {
	var errs []error
	for _, a := range t {
		id, ok, err := a.AuthenticateToken(ctx, token, audiences)
		if ok && err == nil {
			return id, true, nil
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return nil, false, errors.Join(errs...)
}

// bearer authenticates with the token of an Authorization header.
type bearer struct {
	tokens    TokenAuthenticator
	audiences []string
}

var errBadToken = errors.New("invalid bearer token")

// Authenticate implements Authenticator. The header of a valid token is removed, so that no later stage
// can leak it.
func (b bearer) Authenticate(r *http.Request) (*User, bool, error) {
	token := bearerToken(r.Header.Get("Authorization"))
	if token == "" {
		return nil, false, nil
	}
	id, ok, err := b.tokens.AuthenticateToken(r.Context(), token, b.audiences)
	if err == nil && !ok {
		err = errBadToken
	}
	if err != nil {
		return nil, false, err
	}
	r.Header.Del("Authorization")
	return id.User, true, nil
}

// bearerToken returns the bearer token of an Authorization header, "" if it has none.
func bearerToken(header string) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(header), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	token, _, _ = strings.Cut(token, " ")
	return token
}

// authenticated adds GroupAuthenticated to the user's groups.
func authenticated(u *User) *User {
	if u.In(GroupAuthenticated) || u.In(GroupUnauthenticated) {
		return u
	}
	u.Groups = append(u.Groups, GroupAuthenticated)
	return u
}

// meantFor returns the requested audiences that a token names.
func meantFor(token, requested []string) []string {
	var both []string
	for _, a := range requested {
		if slices.Contains(token, a) {
			both = append(both, a)
		}
	}
	return both
}
