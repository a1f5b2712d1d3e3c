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

// madeUp lets through the first ten requests for made-up owners of each object, and holds the others back.
type madeUp struct {
	release chan struct{}

	mu    sync.Mutex
	asked map[string]int // by object
}

// madeUpTransport is that of one client.
type madeUpTransport struct {
	*madeUp
	next http.RoundTripper
}

func (m madeUpTransport) WrappedRoundTripper() http.RoundTripper { return m.next }

func (m madeUpTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	name := path.Base(r.URL.Path)
	if object, _, is := strings.Cut(name, "-made-up-"); is && r.Method == http.MethodGet {
		m.mu.Lock()
		m.asked[object]++
		held := m.asked[object] > 10
		m.mu.Unlock()
		if held {
			select {
			case <-m.release:
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}
	}
	return m.next.RoundTrip(r)
}

// madeUpOwners are references of an object to so many ConfigMaps that don't exist.
func madeUpOwners(object string, n int) (refs []metav1.OwnerReference) {
	for i := range n {
		name := fmt.Sprintf("%s-made-up-%d", object, i)
		refs = append(refs, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: types.UID(name)})
	}
	return refs
}

// A user that may create objects must not stop the collection of others' by owners that have to be asked for.
func TestGarbageCollector_ObjectsWithManyMadeUpOwnersKeepNoWorker(t *testing.T) {
	t.Parallel()
	c := controllertest.NewBare(t)
	c.CreateNamespace("attack")
	held := &madeUp{release: make(chan struct{}), asked: map[string]int{}}
	c.Wrap = func(next http.RoundTripper) http.RoundTripper { return madeUpTransport{held, next} }
	const objects, owners = 30, 250 // more than there are workers; more than a turn of them
	for i := range objects {
		c.CreateMap("attack", fmt.Sprintf("a%d", i), madeUpOwners(fmt.Sprintf("a%d", i), owners)...)
	}
	mine := c.CreateMap("default", "mine")
	kept := c.CreateMap("default", "kept", append(madeUpOwners("kept", 40), owner(mine, true))...)
	c.CreateMap("default", "lost", append(madeUpOwners("lost", 40), owner(kept, false))...)
	c.StartControllers(controllers.Options{Controllers: []string{"garbagecollector"}})
	c.AwaitCollected("default")
	c.DeleteMap("kept", metav1.DeletePropagationOrphan) // an owner that goes while the others are asked for
	c.Eventually("kept is gone", func() bool { return c.Map("default", "kept") == nil })
	require.NotNil(t, c.Map("attack", "a0"))
	close(held.release)
	for i := range objects {
		c.Eventually("the attacker's are gone", func() bool { return c.Map("attack", fmt.Sprintf("a%d", i)) == nil })
	}
	awaitGone(c, "lost")
	held.mu.Lock()
	defer held.mu.Unlock()
	for i := range objects {
		require.Equal(t, owners, held.asked[fmt.Sprintf("a%d", i)], "each owner is asked for once")
	}
}

func TestGarbageCollector_RemovesManyMadeUpOwnersFromAnObjectThatHasAnother(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil, "garbagecollector")
	mine := c.CreateMap("default", "mine")
	c.CreateMap("default", "kept", append(madeUpOwners("kept", 230), owner(mine, true))...)
	var kept *corev1.ConfigMap
	c.Eventually("one owner is left", func() bool {
		kept = c.Map("default", "kept")
		return len(kept.OwnerReferences) == 1
	})
	require.Equal(t, owner(mine, true), kept.OwnerReferences[0])
	c.DeleteMap("mine", metav1.DeletePropagationBackground)
	awaitGone(c, "kept")
}
