package garbagecollector_test

import (
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

// madeUp is a transport that passes the first ten requests for made-up owners of each object, and holds all
// others until release is closed.
type madeUp struct {
	release chan struct{}

	mu       sync.Mutex
	requests map[string]int // by object
}

// madeUpTransport is the transport of one client.
type madeUpTransport struct {
	*madeUp
	next http.RoundTripper
}

func (m madeUpTransport) WrappedRoundTripper() http.RoundTripper { return m.next }

func (m madeUpTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	name := path.Base(r.URL.Path)
	if object, _, is := strings.Cut(name, "-made-up-"); is && r.Method == http.MethodGet {
		m.mu.Lock()
		m.requests[object]++
		blocked := m.requests[object] > 10
		m.mu.Unlock()
		if blocked {
			select {
			case <-m.release:
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
	}
	return m.next.RoundTrip(r)
}

// madeUpOwners returns an object's references to n ConfigMaps that don't exist.
func madeUpOwners(object string, n int) (refs []metav1.OwnerReference) {
	for i := range n {
		name := fmt.Sprintf("%s-made-up-%d", object, i)
		refs = append(refs, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: types.UID(name)})
	}
	return refs
}

// A user who may create objects must not block the collection of other users' objects by owners that need
// requests.
func TestGarbageCollector_ManyMadeUpOwnersBlockNoWorker(t *testing.T) {
	t.Parallel()
	c := controllertest.NewBare(t)
	c.CreateNamespace("attack")
	transport := &madeUp{release: make(chan struct{}), requests: map[string]int{}}
	c.Wrap = func(next http.RoundTripper) http.RoundTripper { return madeUpTransport{transport, next} }
	const objects, owners = 30, 250 // more than there are workers; more than a turn looks up
	for i := range objects {
		c.CreateMap("attack", fmt.Sprintf("a%d", i), madeUpOwners(fmt.Sprintf("a%d", i), owners)...)
	}
	mine := c.CreateMap("default", "mine")
	target := c.CreateMap("default", "kept", append(madeUpOwners("kept", 40), owner(mine, true))...)
	c.CreateMap("default", "lost", append(madeUpOwners("lost", 40), owner(target, false))...)
	c.StartControllers(controllers.Options{Controllers: []string{"garbagecollector"}})
	c.AwaitCollected("default")
	c.DeleteMap("kept", metav1.DeletePropagationOrphan) // this owner is deleted while the others are looked up
	c.Eventually("kept is gone", func() bool { return c.Map("default", "kept") == nil })
	require.NotNil(t, c.Map("attack", "a0"))
	close(transport.release)
	for i := range objects {
		c.Eventually("the attacker's objects are gone", func() bool { return c.Map("attack", fmt.Sprintf("a%d", i)) == nil })
	}
	awaitGone(c, "lost")
	transport.mu.Lock()
	defer transport.mu.Unlock()
	for i := range objects {
		require.Equal(t, owners, transport.requests[fmt.Sprintf("a%d", i)], "one request for each owner")
	}
}

func TestGarbageCollector_RemovesManyMadeUpOwnersBesideARealOne(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil, "garbagecollector")
	mine := c.CreateMap("default", "mine")
	c.CreateMap("default", "kept", append(madeUpOwners("kept", 230), owner(mine, true))...)
	var object *corev1.ConfigMap
	c.Eventually("one owner is left", func() bool {
		object = c.Map("default", "kept")
		return len(object.OwnerReferences) == 1
	})
	require.Equal(t, owner(mine, true), object.OwnerReferences[0])
	c.DeleteMap("mine", metav1.DeletePropagationBackground)
	awaitGone(c, "kept")
}
