package controllers

import (
	"net/http"
	"strings"
	"sync"
)

// Debug serves the controllers' debug pages under /debug/controllers/NAME/, by the older, shorter name of each,
// while they run in this process. A standby answers 404. The zero value is ready for use, and safe for
// concurrent use.
type Debug struct {
	mu       sync.RWMutex
	handlers map[string]http.Handler
}

// DebugPath is the path prefix at which a Debug must be served.
const DebugPath = "/debug/controllers/"

// ServeHTTP implements http.Handler.
func (d *Debug) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, DebugPath), "/")
	d.mu.RLock()
	h := d.handlers[name]
	d.mu.RUnlock()
	if h == nil {
		http.NotFound(w, r)
		return
	}
	http.StripPrefix(DebugPath+name, h).ServeHTTP(w, r)
}

// set serves a controller's handler; nil removes it. A nil Debug ignores it.
func (d *Debug) set(name string, h http.Handler) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handlers == nil {
		d.handlers = map[string]http.Handler{}
	}
	if h == nil {
		delete(d.handlers, name)
		return
	}
	d.handlers[name] = h
}
