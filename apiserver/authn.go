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
		known := err == nil && ok
		if r.ProtoMajor == 2 && !(known && user.Authenticated()) {
			lastRequest(w)
		}
		if !known {
			if err != nil {
				s.Log.Debug("a credential was refused", "client", r.RemoteAddr, "error", err)
			}
			s.auditUnauthenticated(w, r)
			s.writeError(w, r, unauthorized())
			return
		}
		next.ServeHTTP(w, r.WithContext(authn.WithUser(r.Context(), user)))
	})
}

// lastRequest has net/http send GOAWAY with the answer, and close the connection when its other requests are done.
// HTTP/2 makes requests cheap for a client and lets it take them back at once (CVE-2023-44487, CVE-2023-39325), so that
// one without a credential has to connect anew for each, as kube-apiserver demands by the feature
// UnauthenticatedHTTP2DOSMitigation.
func lastRequest(w http.ResponseWriter) { w.Header().Set("Connection", "close") }

// unauthorized gives no reason: a client does not learn why its credential was refused.
func unauthorized() error { return apierrors.NewUnauthorized("Unauthorized") }
