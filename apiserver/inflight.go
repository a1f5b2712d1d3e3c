package apiserver

import (
	"net/http"
	"strings"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// limitInflight answers 429 if more requests are under way than Limits allow. Watches have a limit of their own. Health
// checks always pass, and so do members of system:masters, who must be able to repair an overloaded server.
func (s *Server) limitInflight(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if exchangeOf(r.Context()).long || isHealthPath(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if s.inflight.Take(reads) {
			defer s.inflight.Leave(reads)
		} else if !authn.UserFrom(r.Context()).In(authn.GroupMasters) {
			s.writeError(w, r, status.TooManyRequests())
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isHealthPath(path string) bool {
	return strings.HasPrefix(path, "/livez") || strings.HasPrefix(path, "/readyz") ||
		strings.HasPrefix(path, "/healthz")
}
