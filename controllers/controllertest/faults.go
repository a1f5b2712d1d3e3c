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

// Faults stand between the controllers and the API server: they refuse requests at will and bring watch events late,
// which a server that is well does not do. The zero value does neither.
type Faults struct {
	// Late is how long a piece of a watch is held back at most: caches are as stale. It is set before the controllers
	// start.
	Late time.Duration

	mu     sync.Mutex
	refuse func(verb, plural string) bool
	writes map[string]int // by verb and resource
}

// Between returns a configuration whose requests pass the faults.
func (f *Faults) Between(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &faultyTransport{f, next} })
	return config
}

type faultyTransport struct {
	*Faults
	next http.RoundTripper
}

// WrappedRoundTripper lets callers that close idle connections find them.
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
	if err == nil && f.Late > 0 && r.URL.Query().Has("watch") {
		response.Body = lateBody{response.Body, f.Late}
	}
	return response, err
}

// RefuseNext has the next n writes of a verb (an HTTP method) and a resource refused, as if a quota were exceeded.
func (f *Faults) RefuseNext(n int64, verb, plural string) {
	var left atomic.Int64
	left.Store(n)
	f.RefuseWhile(func() bool { return left.Add(-1) >= 0 }, verb, plural)
}

// RefuseWhile is RefuseNext for as long as a condition holds; it takes the place of an earlier one.
func (f *Faults) RefuseWhile(condition func() bool, verb, plural string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = func(v, p string) bool { return v == verb && p == plural && condition() }
}

// Writes is how many writes of a verb and a resource there have been.
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

// Plural is the resource of a path: what follows the version, or the namespace.
func Plural(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "apis" {
		parts = parts[1:]
	}
	parts = parts[2:]
	if len(parts) > 2 && parts[0] == "namespaces" && parts[2] != "status" && parts[2] != "finalize" {
		parts = parts[2:]
	}
	return parts[0]
}

type lateBody struct {
	io.ReadCloser
	late time.Duration
}

func (b lateBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	<-time.After(rand.N(b.late))
	return n, err
}
