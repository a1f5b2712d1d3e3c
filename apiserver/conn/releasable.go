package conn

import (
	"net/http"
	"sync/atomic"
)

// Releasable is a handler that can be released. When a connection ends while streams are open, net/http's HTTP/2
// keeps a timer (IdleTimeout) that references the connection, and with it the handler and everything behind it,
// for minutes.
type Releasable struct{ handler atomic.Pointer[http.Handler] }

// NewReleasable returns a handler that passes requests to h until Release.
func NewReleasable(h http.Handler) *Releasable {
	r := &Releasable{}
	r.handler.Store(&h)
	return r
}

// Release drops the reference to the handler. Later requests are cut off.
func (r *Releasable) Release() { r.handler.Store(nil) }

func (r *Releasable) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h := r.handler.Load()
	if h == nil {
		panic(http.ErrAbortHandler)
	}
	(*h).ServeHTTP(w, req)
}
