package apiserver

import (
	"context"
	"net/http"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/impersonation"
)

// impersonate lets a caller act as another user (kubectl --as), if it is authorized to. From here on the request is the
// other user's.
func (s *Server) impersonate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !impersonation.Wanted(r.Header) {
			next.ServeHTTP(w, r)
			return
		}
		caller := authn.UserFrom(r.Context())
		wanted, err := impersonation.Read(r.Header)
		if err == nil {
			err = s.mayImpersonate(r.Context(), caller, wanted)
		}
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		s.Log.Info("impersonation", "user", caller.Name, "as", wanted.Name, "groups", wanted.Groups, "method", r.Method,
			"path", r.URL.Path)
		impersonation.Strip(r.Header)
		user := impersonation.Complete(wanted)
		exchangeOf(r.Context()).Audit().Impersonate(user)
		next.ServeHTTP(w, r.WithContext(authn.WithUser(r.Context(), user)))
	})
}

// mayImpersonate authorizes each part of the identity that the caller asks for.
func (s *Server) mayImpersonate(ctx context.Context, caller, wanted *authn.User) error {
	for _, part := range impersonation.Rights(caller, wanted) {
		if err := s.authorize(ctx, part); err != nil {
			return err
		}
	}
	return nil
}
