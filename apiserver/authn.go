package apiserver

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// authenticate identifies the caller. It rejects a bad credential even on paths that need none.
func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok, err := s.authn.Authenticate(r)
		identified := err == nil && ok
		if r.ProtoMajor == 2 && !(identified && user.Authenticated()) {
			lastRequest(w)
		}
		if !identified {
			if err != nil {
				s.Log.Debug("failed to authenticate a request", "client", r.RemoteAddr, "err", err)
			}
			s.auditUnauthenticated(w, r)
			s.writeError(w, r, unauthorized())
			return
		}
		next.ServeHTTP(w, r.WithContext(authn.WithUser(r.Context(), user)))
	})
}

// lastRequest makes net/http send GOAWAY with the answer, and close the connection when its other requests are done.
// With HTTP/2 a client can send requests and reset them at almost no cost (CVE-2023-44487, CVE-2023-39325). A client
// without a credential therefore needs a new connection for each request, as with kube-apiserver's feature
// UnauthenticatedHTTP2DOSMitigation.
func lastRequest(w http.ResponseWriter) { w.Header().Set("Connection", "close") }

// unauthorized returns an answer without a reason: a client does not learn why its credential was rejected.
func unauthorized() error { return apierrors.NewUnauthorized("Unauthorized") }
