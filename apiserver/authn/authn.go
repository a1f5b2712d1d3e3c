// Package authn finds out who makes a request. Each way to show who one is has a file: an
// X.509 certificate is an Authenticator (x509.go), a bearer token of some issuer is a
// TokenAuthenticator (serviceaccount.go, …). New (options.go) makes the list of those
// that are configured, in the order in which they are asked; what a TokenReview asks goes
// through the same list. The User travels in the request's context: authorization,
// admission and audit read it from there.
//
// A credential is compared in constant time and never written to a log, a metric or an
// error.
package authn

import (
	"context"
	"errors"
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// The users and groups that authentication itself gives out.
const (
	// Anonymous is the user who has shown no credential.
	Anonymous = "system:anonymous"
	// GroupUnauthenticated has Anonymous as its only member.
	GroupUnauthenticated = "system:unauthenticated"
	// GroupAuthenticated is held by everyone who has shown a credential.
	GroupAuthenticated = "system:authenticated"
	// GroupMasters may do everything, whatever the authorizer holds.
	GroupMasters = "system:masters"
)

// User is who makes a request: the fields of authentication.k8s.io UserInfo. It is shared
// between requests and must not be changed.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

// In reports whether the user is in the group.
func (u *User) In(group string) bool { return slices.Contains(u.Groups, group) }

// Authenticated reports whether the user has shown who he is.
func (u *User) Authenticated() bool { return u.In(GroupAuthenticated) }

// Info is the user as the review kinds and admission reviews show one.
func (u *User) Info() authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.Name, UID: u.UID, Groups: u.Groups}
	for key, values := range u.Extra {
		if info.Extra == nil {
			info.Extra = make(map[string]authenticationv1.ExtraValue, len(u.Extra))
		}
		info.Extra[key] = values
	}
	return info
}

// AnonymousUser is the caller without a credential.
func AnonymousUser() *User {
	return &User{Name: Anonymous, Groups: []string{GroupUnauthenticated}}
}

// Authenticator tells who makes a request. ok is false when the request bears no credential
// of its sort; err says why one that it bears is not good. It is safe for concurrent use.
type Authenticator interface {
	Authenticate(r *http.Request) (user *User, ok bool, err error)
}

// Union asks each in turn; the first to know the caller decides. A credential that one
// finds bad is only held against the caller when no other knows him.
type Union []Authenticator

// Authenticate implements Authenticator.
func (u Union) Authenticate(r *http.Request) (*User, bool, error) {
	var errs []error
	for _, a := range u {
		user, ok, err := a.Authenticate(r)
		if ok && err == nil {
			return user, true, nil
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return nil, false, errors.Join(errs...)
}

type userKey struct{}

// WithUser puts the caller into a request's context.
func WithUser(ctx context.Context, u *User) context.Context {
	return context.WithValue(ctx, userKey{}, u)
}

// UserFrom is the caller. Behind the server's authentication it is never nil: who has shown
// no credential is AnonymousUser.
func UserFrom(ctx context.Context) *User {
	u, _ := ctx.Value(userKey{}).(*User)
	return u
}
