package authn

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
)

// TokenAuthenticator tells whose a bearer token is. It is safe for concurrent use.
type TokenAuthenticator interface {
	// AuthenticateToken is ok for a good token that is meant for one of the audiences at
	// least. A token of another sort is not ok and no error; err says why one of this sort
	// is not good.
	AuthenticateToken(ctx context.Context, token string, audiences []string) (id *Identity, ok bool, err error)
}

// Identity is what a token says: whose it is, and which of the audiences that were asked for
// it is meant for.
type Identity struct {
	User      *User
	Audiences []string
}

// tokens asks each in turn, as Union does.
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

// bearer authenticates by the token of an Authorization header.
type bearer struct {
	tokens    TokenAuthenticator
	audiences []string
}

var errBadToken = errors.New("invalid bearer token")

// Authenticate implements Authenticator. The header of a good token is taken away: nothing
// that comes later can tell it.
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

// bearerToken is the token of an Authorization header, "" if that is not a bearer's.
func bearerToken(header string) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(header), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	token, _, _ = strings.Cut(token, " ")
	return token
}

// authenticated is the user with the group of everyone who has shown a credential.
func authenticated(u *User) *User {
	if u.In(GroupAuthenticated) || u.In(GroupUnauthenticated) {
		return u
	}
	u.Groups = append(u.Groups, GroupAuthenticated)
	return u
}

// meantFor are those of the audiences asked for that a token names.
func meantFor(token, asked []string) []string {
	var both []string
	for _, a := range asked {
		if slices.Contains(token, a) {
			both = append(both, a)
		}
	}
	return both
}
