package garbagecollector_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

// oldNames is a proxy between the controllers and the API server for objects with names that the server would
// reject today: a "|" in a name arrives as "/".
type oldNames struct {
	mu       sync.Mutex
	requests []string // of subresources, caused by such a name
	replaced int      // bytes that arrived as "/"
}

// oldTransport is the transport of one client through oldNames.
type oldTransport struct {
	*oldNames
	next http.RoundTripper
}

// WrappedRoundTripper lets client-go find the transport below, to close its idle connections.
func (o oldTransport) WrappedRoundTripper() http.RoundTripper { return o.next }

// RoundTrip implements http.RoundTripper.
func (o oldTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "proxy") {
		o.mu.Lock()
		o.requests = append(o.requests, r.Method+" "+r.URL.Path)
		o.mu.Unlock()
	}
	response, err := o.next.RoundTrip(r)
	if err == nil {
		response.Body = slashed{response.Body, o.oldNames}
	}
	return response, err
}

type slashed struct {
	io.ReadCloser
	*oldNames
}

// Read keeps all lengths, so that protobuf stays valid.
func (s slashed) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.mu.Lock()
	s.replaced += bytes.Count(p[:n], []byte("|"))
	s.mu.Unlock()
	copy(p, bytes.ReplaceAll(p[:n], []byte("|"), []byte("/")))
	return n, err
}

func TestGarbageCollector_NeverRequestsAnOwnerWhoseNameIsNoPathSegment(t *testing.T) {
	t.Parallel()
	c := controllertest.NewBare(t)
	c.CreateNode("node", nil)
	for i, name := range []string{"node|proxy|containerLogs|b|px|px", "..|namespaces|b|pods|px|proxy|"} {
		for _, kind := range []string{"Node", "Pod"} {
			c.CreateMap("default", strings.ToLower(kind)+string(rune('0'+i)),
				metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, UID: types.UID("u" + kind)})
		}
	}
	old := &oldNames{}
	c.Wrap = func(next http.RoundTripper) http.RoundTripper { return oldTransport{old, next} }
	c.StartControllers(controllers.Options{Controllers: []string{"garbagecollector"}})
	awaitGone(c, "node0", "node1", "pod0", "pod1") // no object can have the names of their owners
	old.mu.Lock()
	defer old.mu.Unlock()
	require.NotZero(t, old.replaced, "the collector saw such names")
	require.Empty(t, old.requests)
}
