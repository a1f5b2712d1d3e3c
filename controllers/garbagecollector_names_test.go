package controllers_test

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
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/controllers"
)

// oldNames stands between the controllers and the API server. What the server would refuse today, objects had from before:
// in their names a "|" arrives as "/".
type oldNames struct {
	next   http.RoundTripper
	mu     sync.Mutex
	misled []string // paths of what was asked for by such a name
}

func (o *oldNames) WrappedRoundTripper() http.RoundTripper { return o.next }

// RoundTrip implements http.RoundTripper.
func (o *oldNames) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "proxy") {
		o.mu.Lock()
		o.misled = append(o.misled, r.Method+" "+r.URL.Path)
		o.mu.Unlock()
	}
	response, err := o.next.RoundTrip(r)
	if err == nil {
		response.Body = slashed{response.Body}
	}
	return response, err
}

type slashed struct{ io.ReadCloser }

// Read does not change how long anything is, so that protobuf stays sound.
func (s slashed) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	copy(p, bytes.ReplaceAll(p[:n], []byte("|"), []byte("/")))
	return n, err
}

func TestGarbageCollector_NeverAsksForAnOwnerWhoseNameIsNoSegment(t *testing.T) {
	t.Parallel()
	c := newBare(t)
	c.createNode()
	for i, name := range []string{"node|proxy|containerLogs|b|px|px", "..|namespaces|b|pods|px|proxy|"} {
		for _, kind := range []string{"Node", "Pod"} {
			c.object("default", strings.ToLower(kind)+string(rune('0'+i)), metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, UID: types.UID("u" + kind)})
		}
	}
	old := &oldNames{}
	c.config = rest.CopyConfig(c.config)
	c.config.Wrap(func(next http.RoundTripper) http.RoundTripper { old.next = next; return old })
	c.startControllers(controllers.Options{Controllers: []string{"garbagecollector"}})
	c.awaitGone("node0", "node1", "pod0", "pod1") // their owners are lost, for there can be none of these names
	require.Empty(t, old.misled)
}
