package apiserver

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A server shuts down in this order, so that no request fails if its client connects to another server:
//
//  1. /readyz fails, and the server leaves the endpoints of the Service kubernetes. It serves for ShutdownDelay more.
//  2. With SendRetryAfter, new requests are answered 429 until the requests under way are done, within shutdownGrace.
//  3. It accepts no more connections. Clients on HTTP/2 get GOAWAY and send their next requests over new ones.
//  4. Watches end as if their timeout had passed. Other requests are finished, within shutdownGrace.

const shutdownGrace = 5 * time.Second

// MaxGoawayChance is the largest share of requests that may end in a GOAWAY: that of kube-apiserver. A new connection
// costs far more than a request.
const MaxGoawayChance = 0.02

// leave makes the server not ready, removes its address from the Service kubernetes, and waits for ShutdownDelay. It
// returns the error of serving if that fails meanwhile.
func (s *Server) leave(ctx context.Context, served <-chan error) error {
	s.leaving.Store(true)
	s.controlPlane.Leave(ctx)
	if s.ShutdownDelay <= 0 {
		return nil
	}
	delay := time.NewTimer(s.ShutdownDelay)
	defer delay.Stop()
	select {
	case err := <-served:
		return err
	case <-delay.C:
		return nil
	}
}

// refusal counts the requests that are served. Once it is on, new requests are rejected. refuseWhileLeaving counts
// before it reads on, and refuseAll sets on before it reads the count: a request that refuseAll does not count is
// rejected.
type refusal struct {
	on      atomic.Bool
	serving atomic.Int64
}

// shutdownRetryAfter is the Retry-After of rejected requests in seconds, as in kube-apiserver.
const shutdownRetryAfter = 5

// refuseWhileLeaving answers requests with 429 and closes their connections once refuseAll has been called, except for
// requests for the server's health and metrics. It runs before authentication: the answer says only that the server is
// shutting down.
func (s *Server) refuseWhileLeaving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.refusal.serving.Add(1) // before the load, see refusal
		defer s.refusal.serving.Add(-1)
		if s.refusal.on.Load() && !isHealthPath(r.URL.Path) && r.URL.Path != "/metrics" {
			w.Header().Set("Connection", "close")
			s.writeError(w, r, apierrors.NewTooManyRequests(
				"The apiserver is shutting down, please try again later.", shutdownRetryAfter))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refuseAll rejects new requests, ends watches, and waits for the requests under way, for shutdownGrace at most.
func (s *Server) refuseAll() {
	s.refusal.on.Store(true)
	s.beginDrain()
	grace, look := time.NewTimer(shutdownGrace), time.NewTicker(time.Millisecond)
	defer grace.Stop()
	defer look.Stop()
	for s.refusal.serving.Load() > 0 {
		select {
		case <-look.C:
		case <-grace.C:
			return
		}
	}
}

// goaway makes net/http send GOAWAY after a share of the requests, as kube-apiserver does. The requests on the
// connection are finished.
func (s *Server) goaway(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && rand.Float64() < s.GoawayChance {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}
