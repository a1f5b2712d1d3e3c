package apiserver

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// authenticate identifies the caller. A bad credential is refused even where none is needed.
func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok, err := s.authn.Authenticate(r)
		if err != nil || !ok {
			if err != nil {
				s.Log.Debug("a credential was refused", "client", r.RemoteAddr, "error", err)
			}
			s.auditUnauthenticated(observed(w), r)
			s.writeError(w, &request{Request: r}, unauthorized())
			return
		}
		next.ServeHTTP(w, r.WithContext(authn.WithUser(r.Context(), user)))
	})
}

// unauthorized gives no reason: a client does not learn why its credential was refused.
func unauthorized() error { return apierrors.NewUnauthorized("Unauthorized") }
