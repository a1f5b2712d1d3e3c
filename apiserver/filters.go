package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/aggregation"
	"github.com/coxswain-dev/coxswain/apiserver/metrics"
	"github.com/coxswain-dev/coxswain/apiserver/proxy"
	"github.com/coxswain-dev/coxswain/apiserver/query"
)

// recoverPanics turns a panic into a 500 and a log line.
func (s *Server) recoverPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.Log.Error("panic while serving", "method", r.Method, "path", r.URL.Path, "panic", p, "stack",
				string(debug.Stack()))
			s.writeError(w, r, apierrors.NewInternalError(fmt.Errorf("panic while serving %s", r.URL.Path)))
		}()
		next.ServeHTTP(w, r)
	})
}

// observe counts and times the request. It is outermost, so that a panic counts as the 500
// that it became.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(hw http.ResponseWriter, r *http.Request) {
		e := &exchange{start: time.Now(), long: s.longRunning(r),
			labels: metrics.Request{Verb: metrics.Method(r.Method)}}
		room := e.Open(s.limiter, hw, r)
		defer e.Close()
		if !room {
			panic(http.ErrAbortHandler) // resets the stream: an answer would take memory until it is read
		}
		if !e.long {
			inflight := s.metrics.InFlight(r.Method)
			inflight.Inc()
			defer inflight.Dec()
			growStack()
		}
		defer func() { s.metrics.Done(e.labels, e.Code(), time.Since(e.start), e.Waited(), e.Bytes()) }()
		next.ServeHTTP(e, r.WithContext(e.in(r.Context())))
		e.Deliver()
	})
}

// growStack makes room at once for what a request will need. The goroutine of a request begins with a few KiB, and each
// time that they are not enough its stack is copied, with all that is on it by then.
//
//go:noinline
func growStack() {
	var room [16 << 10]byte
	runtime.KeepAlive(&room)
}

// plainPath has the router match the decoded path, whatever the client chose to escape: encodeURIComponent writes
// "system:node" as "system%3Anode". A resource's path may end in slashes, as for go-restful. The paths
// behind a proxy are left as they are.
func plainPath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.RawPath = ""
		if p := r.URL.Path; strings.HasSuffix(p, "/") &&
			(strings.HasPrefix(p, "/api/") || strings.HasPrefix(p, "/apis/")) &&
			!(proxy.Connects(p) && strings.Contains(p, "/proxy/")) {
			chi.RouteContext(r.Context()).RoutePath = strings.TrimRight(p, "/")
		}
		next.ServeHTTP(w, r)
	})
}

// limitBody bounds the time in which a body must arrive, even one that nobody will read. Requests that
// connect lift the bound once they have been authorized.
func (s *Server) limitBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.RequestTimeout))
		}
		next.ServeHTTP(w, r)
	})
}

// deadline bounds every request that is not a watch by RequestTimeout or, if shorter, by
// the timeout that the client asks for.
func (s *Server) deadline(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if exchangeOf(r.Context()).long {
			control := http.NewResponseController(w)
			_ = control.SetWriteDeadline(time.Time{})
			next.ServeHTTP(w, r)
			_ = control.SetWriteDeadline(time.Now().Add(headerTimeout)) // for what is still to be sent
			return
		}
		limit := s.RequestTimeout
		if strings.Contains(r.URL.RawQuery, "timeout=") {
			if asked := r.URL.Query().Get("timeout"); asked != "" {
				d, err := time.ParseDuration(asked)
				if err != nil || d < 0 {
					s.writeError(w, r, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout %q", asked)))
					return
				}
				if d > 0 && d < limit {
					limit = d
				}
			}
		}
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// returnSeats returns the seats of flow control that a request has taken on its route (Server.takeSeat), whichever that
// was and however it ended.
func (s *Server) returnSeats(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer exchangeOf(r.Context()).ReleaseSeats()
		next.ServeHTTP(w, r)
	})
}

// longRunning reports whether the request may go on for as long as the client likes.
func (s *Server) longRunning(r *http.Request) bool {
	if to := s.aggregation.At(r.URL.Path); to != nil {
		a, err := aggregation.Attributes(r, nil)
		return err == nil && aggregation.Streams(&a)
	}
	return longRunning(r)
}

// longRunning is Server.longRunning for requests that this server answers itself: watches, subresources that connect,
// and a few paths. The parameter "watch" of any other request means nothing.
func longRunning(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.RawQuery, "watch") &&
		isCollectionPath(r.URL.Path) && query.Flag(r.URL.Query(), "watch") ||
		r.Method == http.MethodGet && isWatchPath(r.URL.Path) ||
		proxy.Connects(r.URL.Path) || isLongPath(r.URL.Path)
}

// isCollectionPath reports whether a path is that of a collection of objects, which a client can watch:
// /api/v1/nodes, /apis/apps/v1/namespaces/default/deployments.
func isCollectionPath(path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return false
	}
	return len(parts) == 1 ||
		len(parts) == 3 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize"
}

// isLongPath reports whether a path is one that is not about objects and may take as long as the client likes: a
// profile, or the move of a clock.
func isLongPath(path string) bool {
	return strings.HasPrefix(path, "/debug/pprof/") || path == clockPath
}

// isWatchPath reports whether a path is an old one of a watch: /api/v1/watch/pods.
func isWatchPath(path string) bool {
	if !strings.Contains(path, "/watch/") {
		return false
	}
	parts := strings.SplitN(path, "/", 5) // "", "apis", group, version, "watch/…"
	return len(parts) == 5 && (parts[1] == "api" && parts[3] == "watch" || parts[1] == "apis" &&
		strings.HasPrefix(parts[4], "watch/"))
}
