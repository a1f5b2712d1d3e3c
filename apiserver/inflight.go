package apiserver

import (
	"net/http"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// inflight, where requests are not judged by API Priority and Fairness, holds the places of those that
// are served at once: some for those that
// change something and some for the others, so that neither sort can keep the other out.
type inflight struct{ readOnly, mutating places }

// places is as many as the channel holds; nil has no bound.
type places chan struct{}

func newPlaces(n int) places {
	if n < 0 {
		return nil
	}
	return make(places, n)
}

// limitInflight answers 429 where more requests are under way than Limits allow. Watches, which
// last, have a limit of their own; health checks must get through; and who may do everything
// may also mend an overloaded server.
func (s *Server) limitInflight(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := s.inflight.mutating
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			at = s.inflight.readOnly
		}
		if at == nil || longRunning(r) || isHealthPath(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		select {
		case at <- struct{}{}:
			defer func() { <-at }()
		default:
			if !authn.UserFrom(r.Context()).In(authn.GroupMasters) {
				s.writeError(w, &request{Request: r}, tooMany())
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// tooMany asks the client to come back in a second.
func tooMany() error {
	return apierrors.NewTooManyRequests("Too many requests, please try again later.", 1)
}

func isHealthPath(path string) bool {
	return strings.HasPrefix(path, "/livez") || strings.HasPrefix(path, "/readyz") || strings.HasPrefix(path, "/healthz")
}

// watchCounts is how many watches each user has.
type watchCounts struct {
	most int // negative is no bound

	mu     sync.Mutex
	byUser map[string]int
}

// begin counts a user's watch, unless he has as many as one user may have.
func (c *watchCounts) begin(u *authn.User) error {
	if c.most < 0 || u.In(authn.GroupMasters) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byUser[u.Name] >= c.most {
		return tooMany()
	}
	if c.byUser == nil {
		c.byUser = map[string]int{}
	}
	c.byUser[u.Name]++
	return nil
}

// end takes back what begin has counted.
func (c *watchCounts) end(u *authn.User) {
	if c.most < 0 || u.In(authn.GroupMasters) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byUser[u.Name]--; c.byUser[u.Name] == 0 {
		delete(c.byUser, u.Name)
	}
}
