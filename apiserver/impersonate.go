package apiserver

import (
	"context"
	"net/http"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/impersonation"
)

// impersonate lets an authorized caller act as another user (kubectl --as). The rest of the chain sees the other user.
func (s *Server) impersonate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !impersonation.Wanted(r.Header) {
			next.ServeHTTP(w, r)
			return
		}
		caller := authn.UserFrom(r.Context())
		target, err := impersonation.Read(r.Header)
		if err == nil {
			err = s.mayImpersonate(r.Context(), caller, target)
		}
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		s.Log.Info("impersonation", "user", caller.Name, "as", target.Name, "groups", target.Groups, "method", r.Method,
			"path", r.URL.Path)
		impersonation.Strip(r.Header)
		user := impersonation.Complete(target)
		exchangeOf(r.Context()).Audit().Impersonate(user)
		next.ServeHTTP(w, r.WithContext(authn.WithUser(r.Context(), user)))
	})
}

// mayImpersonate authorizes each part of the identity that the caller asks for.
func (s *Server) mayImpersonate(ctx context.Context, caller, target *authn.User) error {
	for _, part := range impersonation.Rights(caller, target) {
		if err := s.authorize(ctx, part); err != nil {
			return err
		}
	}
	return nil
}
