package storage

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStore_CommitGetListWatch(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, pods := startPods(t, Options{})
	w := watch(t, pods, WatchRequest{})

	created := create(t, s, podKey("default", "web"), pod("default", "web", "", "app=web"))
	require.Equal(t,
		fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"%d","name":"web","namespace":"default","uid":"uid-web","labels":{"app":"web"}},"spec":{"nodeName":""}}`, created.Revision), string(created.JSON))

	got, err := pods.Get(ctx, "default", "web", At{})
	require.NoError(t, err)
	require.Equal(t, created, got)

	list, err := pods.List(ctx, ListRequest{})
	require.NoError(t, err)
	require.Equal(t, []*Object{created}, list.Items)
	require.Equal(t, created.Revision, list.Revision)

	bound := update(t, s, got, pod("default", "web", "node-1"))
	deleted := remove(t, s, bound)
	require.Equal(t, bound.Fields, deleted.Fields)

	events := take(t, w, 3)
	require.Equal(t, []string{
		fmt.Sprintf("ADDED default/web %d", created.Revision),
		fmt.Sprintf("MODIFIED default/web %d", bound.Revision),
		fmt.Sprintf("DELETED default/web %d", deleted.Revision),
	}, briefs(events))
	require.Equal(t, deleted, events[2].Object)

	_, err = pods.Get(ctx, "default", "web", At{})
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, s.Ready(ctx))
}

// A handler may outlive its server by a moment. The store then closes during the handler's read.
func TestClose_FailsConcurrentReads(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	var readers sync.WaitGroup
	begun := make(chan struct{}, 8)
	for range cap(begun) {
		readers.Go(func() {
			for first := true; ; first = false {
				_, err := pods.List(t.Context(), ListRequest{})
				if first {
					begun <- struct{}{}
				}
				if err != nil {
					assert.ErrorIs(t, err, ErrUnavailable)
					return
				}
			}
		})
	}
	for range cap(begun) {
		<-begun
	}
	require.NoError(t, s.Close())
	readers.Wait()
}

func TestKeyPrefix_AddsSlashes(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{"": "/registry/", "foo": "/foo/", "/foo": "/foo/", "/foo/": "/foo/",
		"a/b//": "/a/b/", "/": "/"} {
		require.Equal(t, want, KeyPrefix(prefix), prefix)
	}
}
