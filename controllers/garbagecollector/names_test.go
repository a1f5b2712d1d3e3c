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

// oldNames stands between the controllers and the API server. What the server would refuse today, objects had
// from before: in their names a "|" arrives as "/".
type oldNames struct {
	mu     sync.Mutex
	misled []string // what was asked for by such a name
	shown  int      // bytes that arrived as another
}

// oldTransport is a client's transport through oldNames.
type oldTransport struct {
	*oldNames
	next http.RoundTripper
}

// WrappedRoundTripper lets callers that close idle connections find them.
func (o oldTransport) WrappedRoundTripper() http.RoundTripper { return o.next }

// RoundTrip implements http.RoundTripper.
func (o oldTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "proxy") {
		o.mu.Lock()
		o.misled = append(o.misled, r.Method+" "+r.URL.Path)
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

// Read does not change how long anything is, so that protobuf stays sound.
func (s slashed) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.mu.Lock()
	s.shown += bytes.Count(p[:n], []byte("|"))
	s.mu.Unlock()
	copy(p, bytes.ReplaceAll(p[:n], []byte("|"), []byte("/")))
	return n, err
}

func TestGarbageCollector_NeverAsksForAnOwnerWhoseNameIsNoSegment(t *testing.T) {
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
	awaitGone(c, "node0", "node1", "pod0", "pod1") // their owners are lost, for there can be none of these names
	old.mu.Lock()
	defer old.mu.Unlock()
	require.NotZero(t, old.shown, "the collector was shown such names")
	require.Empty(t, old.misled)
}
