package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/storage"
)

// patience is how long a test waits for something that must happen. It is long, because no test
// measures it.
const patience = time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func startBackend(t testing.TB) storage.Backend {
	t.Helper()
	b, err := StartEmbedded(testContext(t), EmbeddedOptions{Dir: t.TempDir(), Unsafe: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func openStore(t testing.TB, b storage.Backend, o storage.Options) *storage.Store {
	t.Helper()
	s, err := storage.Open(testContext(t), b, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

const podsName = "core/pods"

var podOptions = storage.CollectionOptions{Fields: []string{"spec.nodeName"}, Index: "spec.nodeName"}

func startPods(t testing.TB) (*storage.Store, *storage.Collection) {
	t.Helper()
	s := openStore(t, startBackend(t), storage.Options{})
	return s, s.Collection(podsName, podOptions)
}

func podKey(namespace, name string) storage.Key {
	return storage.Key{Collection: podsName, Namespace: namespace, Name: name}
}

// pod returns a small pod document.
func pod(namespace, name, node string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":%q,"uid":"uid-%s"},"spec":{"nodeName":%q}}`,
		name, namespace, name, node)
}

func create(t testing.TB, s *storage.Store, key storage.Key, document []byte) *storage.Object {
	t.Helper()
	result, err := s.Commit(testContext(t), storage.Write{Op: storage.Create, Key: key, Value: document})
	require.NoError(t, err)
	return result.Objects[0]
}

func update(t testing.TB, s *storage.Store, old *storage.Object, document []byte) *storage.Object {
	t.Helper()
	result, err := s.Commit(testContext(t),
		storage.Write{Op: storage.Update, Key: old.Key, Value: document, Expect: old.Revision})
	require.NoError(t, err)
	return result.Objects[0]
}

func remove(t testing.TB, s *storage.Store, old *storage.Object) {
	t.Helper()
	_, err := s.Commit(testContext(t), storage.Write{Op: storage.Delete, Key: old.Key, Expect: old.Revision})
	require.NoError(t, err)
}

func watch(t testing.TB, c *storage.Collection) *storage.Watcher {
	t.Helper()
	w, err := c.Watch(testContext(t), storage.WatchRequest{})
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return w
}

// take reads exactly n events.
func take(t testing.TB, w *storage.Watcher, n int) []storage.Event {
	t.Helper()
	var events []storage.Event
	for len(events) < n {
		batch, err := w.Next(testContext(t))
		require.NoError(t, err)
		events = append(events, batch...)
	}
	require.Len(t, events, n)
	return events
}

// briefs returns events in a short form: "ADDED default/web 12".
func briefs(events []storage.Event) []string {
	lines := make([]string, len(events))
	for i, e := range events {
		lines[i] = fmt.Sprintf("%s %s/%s %d", e.Type, e.Object.Key.Namespace, e.Object.Key.Name, e.Revision)
	}
	return lines
}

// added returns the event of a created object, in short form.
func added(o *storage.Object) string {
	return briefs([]storage.Event{{Type: storage.Added, Object: o, Revision: o.Revision}})[0]
}

func names(objects []*storage.Object) []string {
	list := make([]string, len(objects))
	for i, o := range objects {
		list[i] = o.Key.Namespace + "/" + o.Key.Name
	}
	return list
}
