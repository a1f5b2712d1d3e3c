// Package impersonation reads the headers by which a client acts as another user (kubectl --as), and knows the rights
// that this takes: on each part of the identity that the client asks for, which are the user, every group, the UID and
// every value of extra.
// https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/
package impersonation

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// Wanted reports whether the headers ask to act as another user.
func Wanted(h http.Header) bool {
	for name := range h {
		if isHeader(name) {
			return true
		}
	}
	return false
}

func isHeader(header string) bool {
	switch header {
	case authenticationv1.ImpersonateUserHeader, authenticationv1.ImpersonateGroupHeader,
		authenticationv1.ImpersonateUIDHeader:
		return true
	}
	return strings.HasPrefix(header, authenticationv1.ImpersonateUserExtraHeaderPrefix)
}

// Strip removes the headers: the request is the other user's now, wherever it is sent on to.
func Strip(h http.Header) {
	for name := range h {
		if isHeader(name) {
			delete(h, name)
		}
	}
}

// Read returns the identity that the headers ask for.
func Read(h http.Header) (*authn.User, error) {
	u := &authn.User{Groups: slices.Clone(h[authenticationv1.ImpersonateGroupHeader])}
	for name, value := range map[string]*string{
		authenticationv1.ImpersonateUserHeader: &u.Name, authenticationv1.ImpersonateUIDHeader: &u.UID,
	} {
		if len(h[name]) > 1 { // a proxy before us may have looked at another one
			return nil, apierrors.NewBadRequest(fmt.Sprintf("header %s is there more than once", name))
		}
		*value = h.Get(name)
	}
	for name, values := range h {
		key, ok := strings.CutPrefix(name, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		if plain, err := url.PathUnescape(key); err == nil {
			key = plain
		}
		if u.Extra == nil {
			u.Extra = map[string][]string{}
		}
		u.Extra[key] = append(u.Extra[key], values...)
	}
	if u.Name == "" {
		return nil, apierrors.NewBadRequest(
			"requested to impersonate groups, a UID or extra without impersonating a user")
	}
	return u, nil
}

// Rights are what the caller must be allowed to do to act as another user.
func Rights(caller, wanted *authn.User) []authz.Attributes {
	user := authz.Attributes{Resource: "users", Name: wanted.Name}
	if namespace, name, ok := authn.SplitServiceAccountName(wanted.Name); ok {
		user = authz.Attributes{Resource: "serviceaccounts", Namespace: namespace, Name: name}
	}
	parts := []authz.Attributes{user}
	for _, group := range wanted.Groups {
		parts = append(parts, authz.Attributes{Resource: "groups", Name: group})
	}
	for key, values := range wanted.Extra {
		for _, value := range values {
			parts = append(parts, authz.Attributes{Group: authenticationv1.GroupName, Version: "v1",
				Resource: "userextras", Subresource: key, Name: value})
		}
	}
	if wanted.UID != "" {
		parts = append(parts, authz.Attributes{Group: authenticationv1.GroupName, Version: "v1", Resource: "uids",
			Name: wanted.UID})
	}
	for i := range parts {
		parts[i].User, parts[i].Verb = caller, "impersonate"
	}
	return parts
}

// Complete adds the groups that authentication would have given the user. Where the headers name groups, that is only
// the group of authenticated or unauthenticated users.
func Complete(u *authn.User) *authn.User {
	if namespace, _, ok := authn.SplitServiceAccountName(u.Name); ok && len(u.Groups) == 0 {
		u.Groups = authn.ServiceAccountGroups(namespace)
	}
	switch {
	case u.In(authn.GroupUnauthenticated):
	case u.Name == authn.Anonymous:
		u.Groups = append(u.Groups, authn.GroupUnauthenticated)
	case !u.In(authn.GroupAuthenticated):
		u.Groups = append(u.Groups, authn.GroupAuthenticated)
	}
	return u
}
