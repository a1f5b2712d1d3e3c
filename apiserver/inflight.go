package apiserver

import (
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// limitInflight answers 429 where more requests are under way than Limits allow. Watches
// have a limit of their own; health checks must get through; and members of system:masters must be able to
// mend an overloaded server.
func (s *Server) limitInflight(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if observed(w).long || isHealthPath(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if s.inflight.Take(reads) {
			defer s.inflight.Leave(reads)
		} else if !authn.UserFrom(r.Context()).In(authn.GroupMasters) {
			s.writeError(w, &request{Request: r}, tooMany())
			return
		}
		next.ServeHTTP(w, r)
	})
}

// tooMany asks the client to come back in a second.
func tooMany() error {
	return apierrors.NewTooManyRequests("Too many requests, please try again later.", 1)
}

func isHealthPath(path string) bool {
	return strings.HasPrefix(path, "/livez") || strings.HasPrefix(path, "/readyz") ||
		strings.HasPrefix(path, "/healthz")
}
