package apiserver

import (
	"context"
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

// impersonate lets a caller act as someone else (kubectl --as), if the authorizer allows him
// to impersonate each thing that he asks to be: the user, every group, the UID, every
// value of extra. From here on the request is the other's.
// https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/
func (s *Server) impersonate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !impersonates(r.Header) {
			next.ServeHTTP(w, r)
			return
		}
		caller := authn.UserFrom(r.Context())
		wanted, err := readImpersonation(r.Header)
		if err == nil {
			err = s.mayImpersonate(r.Context(), caller, wanted)
		}
		if err != nil {
			s.writeError(w, &request{Request: r}, err)
			return
		}
		s.Log.Info("impersonation", "user", caller.Name, "as", wanted.Name, "groups", wanted.Groups, "method", r.Method, "path", r.URL.Path)
		for name := range r.Header {
			if isImpersonation(name) {
				delete(r.Header, name)
			}
		}
		next.ServeHTTP(w, r.WithContext(authn.WithUser(r.Context(), impersonated(wanted))))
	})
}

func impersonates(h http.Header) bool {
	for name := range h {
		if isImpersonation(name) {
			return true
		}
	}
	return false
}

func isImpersonation(header string) bool {
	switch header {
	case authenticationv1.ImpersonateUserHeader, authenticationv1.ImpersonateGroupHeader, authenticationv1.ImpersonateUIDHeader:
		return true
	}
	return strings.HasPrefix(header, authenticationv1.ImpersonateUserExtraHeaderPrefix)
}

// readImpersonation is who the caller wants to be, as far as the headers say.
func readImpersonation(h http.Header) (*authn.User, error) {
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
		return nil, apierrors.NewBadRequest("requested to impersonate groups, a UID or extra without impersonating a user")
	}
	return u, nil
}

// mayImpersonate asks about each part of who the caller wants to be.
func (s *Server) mayImpersonate(ctx context.Context, caller, wanted *authn.User) error {
	for _, part := range impersonationParts(caller, wanted) {
		if err := s.authorize(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func impersonationParts(caller, wanted *authn.User) []authz.Attributes {
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
			parts = append(parts, authz.Attributes{Group: authenticationv1.GroupName, Version: "v1", Resource: "userextras", Subresource: key, Name: value})
		}
	}
	if wanted.UID != "" {
		parts = append(parts, authz.Attributes{Group: authenticationv1.GroupName, Version: "v1", Resource: "uids", Name: wanted.UID})
	}
	for i := range parts {
		parts[i].User, parts[i].Verb = caller, "impersonate"
	}
	return parts
}

// impersonated completes the groups as authentication would have. Groups that were asked for
// are all there are, but for the one that says whether the user is known at all.
func impersonated(u *authn.User) *authn.User {
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
