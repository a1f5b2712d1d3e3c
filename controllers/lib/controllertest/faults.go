package controllertest

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Faults injects failures between the controllers and the API server: rejected requests, and watch events that
// arrive late or not at all, which a healthy server does not produce. The zero value injects none.
type Faults struct {
	// Late bounds the delay of each read from a watch, and so the staleness of the caches. It must be set
	// before the controllers start.
	Late time.Duration

	mu       sync.Mutex
	refuse   func(verb, plural string) bool
	writes   map[string]int           // sent writes, by verb and resource
	answered map[string]int           // answered requests except watches, by verb and resource
	held     map[string]chan struct{} // by resource: closed when its watches may continue
}

// Between returns a copy of config that sends its requests through the faults.
func (f *Faults) Between(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &faultyTransport{f, next} })
	return config
}

type faultyTransport struct {
	*Faults
	next http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport below, to close its idle connections.
func (f *faultyTransport) WrappedRoundTripper() http.RoundTripper { return f.next }

// RoundTrip implements http.RoundTripper.
func (f *faultyTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && f.refuses(r) {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		status, err := json.Marshal(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Message: "exceeded quota"})
		return &http.Response{StatusCode: http.StatusForbidden, Proto: r.Proto,
			Header: http.Header{"Content-Type": {"application/json"}},
			Body:   io.NopCloser(bytes.NewReader(status)), Request: r}, err
	}
	response, err := f.next.RoundTrip(r)
	if !r.URL.Query().Has("watch") {
		f.answer(r)
	} else if err == nil {
		response.Body = &lateBody{ReadCloser: response.Body, Faults: f.Faults, plural: Plural(r.URL.Path),
			closed: make(chan struct{})}
	}
	return response, err
}

// Hold stops all watch events of the resources from now on, as if a cache were far behind, until release is
// called or the controller ends the watch.
func (f *Faults) Hold(plurals ...string) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	if f.held == nil {
		f.held = map[string]chan struct{}{}
	}
	for _, plural := range plurals {
		f.held[plural] = gate
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, plural := range plurals {
			delete(f.held, plural)
		}
		close(gate)
	}
}

// gate returns a channel that is closed when the watches of a resource may continue; nil if they are not held.
func (f *Faults) gate(plural string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[plural]
}

func (f *Faults) answer(r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answered == nil {
		f.answered = map[string]int{}
	}
	f.answered[r.Method+" "+Plural(r.URL.Path)]++
}

// Answered returns how many requests of a verb for a resource the API server has answered, except watches.
func (f *Faults) Answered(verb, plural string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answered[verb+" "+plural]
}

// RefuseNext makes the next n writes of a verb (an HTTP method) for a resource fail, as if a quota were
// exceeded.
func (f *Faults) RefuseNext(n int64, verb, plural string) {
	var left atomic.Int64
	left.Store(n)
	f.RefuseWhile(func() bool { return left.Add(-1) >= 0 }, verb, plural)
}

// RefuseWhile makes such writes fail while condition returns true. It replaces earlier calls.
func (f *Faults) RefuseWhile(condition func() bool, verb, plural string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = func(v, p string) bool { return v == verb && p == plural && condition() }
}

// Writes returns how many writes of a verb for a resource have been sent.
func (f *Faults) Writes(verb, plural string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes[verb+" "+plural]
}

func (f *Faults) refuses(r *http.Request) bool {
	plural := Plural(r.URL.Path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writes == nil {
		f.writes = map[string]int{}
	}
	f.writes[r.Method+" "+plural]++
	return f.refuse != nil && f.refuse(r.Method, plural)
}

// Plural returns the resource in a path: the part after the version or the namespace.
func Plural(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "apis" {
		parts = parts[1:]
	}
	parts = parts[min(2, len(parts)):]
	if len(parts) == 0 {
		return "" // a path of discovery
	}
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize" {
		parts = parts[2:]
	}
	return parts[0]
}

// lateBody is the body of a watch that is late, and blocked while its resource is held.
type lateBody struct {
	io.ReadCloser
	*Faults
	plural string
	closed chan struct{}
	once   sync.Once
}

// Read implements io.Reader.
func (b *lateBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.Late > 0 {
		<-time.After(rand.N(b.Late))
	}
	if gate := b.gate(b.plural); gate != nil {
		select {
		case <-gate:
		case <-b.closed:
		}
	}
	return n, err
}

// Close implements io.Closer.
func (b *lateBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.ReadCloser.Close()
}
