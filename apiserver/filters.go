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
			s.metrics.Terminated(exchangeOf(r.Context()).labels, http.StatusInternalServerError)
			s.writeError(w, r, apierrors.NewInternalError(fmt.Errorf("panic while serving %s", r.URL.Path)))
		}()
		next.ServeHTTP(w, r)
	})
}

// observe counts and times the request. It is outermost, so that a panic counts as a 500.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(hw http.ResponseWriter, r *http.Request) {
		e := &exchange{start: time.Now(), long: s.longRunning(r),
			labels: metrics.Request{Verb: metrics.Method(r.Method)}}
		room := e.Open(s.limiter, hw, r)
		defer e.Close()
		if !room {
			panic(http.ErrAbortHandler) // resets the stream: an answer would hold memory until the client reads it
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

// growStack grows the stack at once to the size that a request will need. The goroutine of a request begins with a few
// KiB, and its stack is copied each time that it grows.
//
//go:noinline
func growStack() {
	var room [16 << 10]byte
	runtime.KeepAlive(&room)
}

// plainPath makes the router match the decoded path, so that clients may escape any character: encodeURIComponent
// writes "system:node" as "system%3Anode". A resource's path may end in slashes, as in go-restful. The paths behind a
// proxy are not changed.
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

// limitBody limits the time in which a body must arrive, even a body that is not read. Requests that connect lift the
// limit once they have been authorized.
func (s *Server) limitBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.RequestTimeout))
		}
		next.ServeHTTP(w, r)
	})
}

// deadline limits every request except long-running ones to RequestTimeout or, if shorter, to the timeout that the
// client asks for.
func (s *Server) deadline(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if exchangeOf(r.Context()).long {
			control := http.NewResponseController(w)
			_ = control.SetWriteDeadline(time.Time{})
			next.ServeHTTP(w, r)
			_ = control.SetWriteDeadline(time.Now().Add(headerTimeout)) // for buffered bytes
			return
		}
		limit := s.RequestTimeout
		if strings.Contains(r.URL.RawQuery, "timeout=") {
			if text := r.URL.Query().Get("timeout"); text != "" {
				d, err := time.ParseDuration(text)
				if err != nil || d < 0 {
					s.writeError(w, r, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout %q", text)))
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

// returnSeats returns the seats of flow control that a request has taken on its route (Server.takeSeat), even if the
// handler panics.
func (s *Server) returnSeats(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer exchangeOf(r.Context()).ReleaseSeats()
		next.ServeHTTP(w, r)
	})
}

// longRunning reports whether the request has no deadline: the client decides how long it lasts.
func (s *Server) longRunning(r *http.Request) bool {
	if service := s.aggregation.At(r.URL.Path); service != nil {
		a, err := aggregation.Attributes(r, nil)
		return err == nil && aggregation.Streams(&a)
	}
	return longRunning(r)
}

// longRunning implements Server.longRunning for requests that this server answers itself: watches, subresources that
// connect, and a few paths. The parameter "watch" of other requests is ignored.
func longRunning(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.RawQuery, "watch") &&
		isCollectionPath(r.URL.Path) && query.Flag(r.URL.Query(), "watch") ||
		r.Method == http.MethodGet && isWatchPath(r.URL.Path) ||
		proxy.Connects(r.URL.Path) || isLongPath(r.URL.Path)
}

// isCollectionPath reports whether a client can watch the path, because it is the path of a collection of objects:
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

// isLongPath reports whether a request for a path that is not about objects has no deadline: a profile, or the move of
// a clock.
func isLongPath(path string) bool {
	return strings.HasPrefix(path, "/debug/pprof/") || path == clockPath
}

// isWatchPath reports whether a path is a deprecated path of a watch: /api/v1/watch/pods.
func isWatchPath(path string) bool {
	if !strings.Contains(path, "/watch/") {
		return false
	}
	parts := strings.SplitN(path, "/", 5) // "", "apis", group, version, "watch/…"
	return len(parts) == 5 && (parts[1] == "api" && parts[3] == "watch" || parts[1] == "apis" &&
		strings.HasPrefix(parts[4], "watch/"))
}
