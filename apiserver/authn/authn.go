// Package authn authenticates requests. Each kind of credential has a file: an Authenticator checks an X.509
// certificate (x509.go), a TokenAuthenticator the bearer tokens of an issuer (serviceaccount.go, …). New
// (options.go) returns the configured ones, in the order of their use; a TokenReview goes through the
// same list. The User is added to the request's context: authorization, admission and audit read it there.
//
// A credential is compared in constant time and never written to a log, a metric or an error.
package authn

import (
	"context"
	"errors"
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// The users and groups that authentication itself assigns.
const (
	// Anonymous is the user of requests without a credential.
	Anonymous = "system:anonymous"
	// GroupUnauthenticated has Anonymous as its only member.
	GroupUnauthenticated = "system:unauthenticated"
	// GroupAuthenticated has all users with a valid credential as members.
	GroupAuthenticated = "system:authenticated"
	// GroupMasters may do everything, independently of the authorizers.
	GroupMasters = "system:masters"
)

// User is the user who makes a request: the fields of UserInfo in authentication.k8s.io. It is shared between
// requests and must not be changed.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

// In reports whether the user is in the group.
func (u *User) In(group string) bool { return slices.Contains(u.Groups, group) }

// Authenticated reports whether the user has presented a valid credential.
func (u *User) Authenticated() bool { return u.In(GroupAuthenticated) }

// Info returns the user as the review kinds and admission reviews show it.
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

// AnonymousUser returns the user of requests without a credential.
func AnonymousUser() *User {
	return &User{Name: Anonymous, Groups: []string{GroupUnauthenticated}}
}

// Authenticator returns the user who makes a request. ok is false if the request has no credential of its kind; err
// is the reason why the credential is not valid. It is safe for concurrent use.
type Authenticator interface {
	Authenticate(r *http.Request) (user *User, ok bool, err error)
}

// Union tries its elements in turn, until one authenticates the user. Their errors count only if none does.
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

// WithUser adds the user to a request's context.
func WithUser(ctx context.Context, u *User) context.Context {
	return context.WithValue(ctx, userKey{}, u)
}

// UserFrom returns the user of a request. After the server's authentication it is never nil: without a
// credential it is AnonymousUser.
func UserFrom(ctx context.Context) *User {
	u, _ := ctx.Value(userKey{}).(*User)
	return u
}
