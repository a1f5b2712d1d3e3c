package apiserver

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A server that is told to stop ends in this order, so that no client that goes elsewhere has a request fail:
//
//  1. /readyz fails, and the server leaves the endpoints of the Service kubernetes. It serves for ShutdownDelay more.
//  2. With SendRetryAfter, new requests are answered 429 until those under way are done, within shutdownGrace.
//  3. It accepts no more connections. Clients on HTTP/2 get GOAWAY and send their next requests over new ones.
//  4. Watches end as if their time were over. Other requests are finished, within shutdownGrace.

const shutdownGrace = 5 * time.Second

// MaxGoawayChance is the largest share of requests that may end in a GOAWAY: that of kube-apiserver. A new connection
// costs far more than a request.
const MaxGoawayChance = 0.02

// leave tells everyone who asks that this server is going, and gives them ShutdownDelay. The error is that of serving,
// should it fail before.
func (s *Server) leave(ctx context.Context, at netip.AddrPort, served <-chan error) error {
	s.leaving.Store(true)
	s.controlPlane.Leave(ctx, at)
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

// refusal counts the requests that are served, and has new ones refused once it is on.
type refusal struct {
	on      atomic.Bool
	serving atomic.Int64
}

// shutdownRetryAfter is after how many seconds clients that are refused try again: kube-apiserver's.
const shutdownRetryAfter = 5

// refuseWhileLeaving answers requests with 429 from refuseAll on, except those for the server's health and metrics, and
// has their connections end. It knows no user: nothing is told but that the server is going.
func (s *Server) refuseWhileLeaving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.refusal.serving.Add(1) // before the look: refuseAll looks the other way around
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

// refuseAll refuses new requests, ends watches, and waits for the requests under way, for shutdownGrace at most.
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

// goaway has net/http send GOAWAY after a share of the requests, as kube-apiserver does. The requests on the connection
// are finished.
func (s *Server) goaway(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && rand.Float64() < s.GoawayChance {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}
