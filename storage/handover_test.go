package storage

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHandover_MemoryHoldsTheObjectThatTheCommitMade(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, pods := startPods(t, Options{})
	for i := range 100 { // the watch may be quicker, but not always
		key := podKey("default", fmt.Sprintf("p%d", i))
		made := create(t, s, key, pod(key.Namespace, key.Name, ""))
		got, err := pods.Get(ctx, key.Namespace, key.Name, At{})
		require.NoError(t, err)
		require.Equal(t, made, got)
		if made == got {
			return
		}
	}
	require.Fail(t, "every object was scanned twice")
}

func TestHandover_DropsObjectsThatComeTooLate(t *testing.T) {
	t.Parallel()
	var h handover
	var f frontier
	object := func(revision int64) *Object { return &Object{Key: podKey("default", "a"), Revision: revision} }
	h.give(&f, object(5), plainSchema)
	h.give(&f, object(7), plainSchema)
	f.advance(6)
	h.give(&f, object(6), plainSchema)
	require.Len(t, h.take(6), 1, "an object that comes too late is dropped")
	require.Len(t, h.take(7), 1)
	require.Empty(t, h.take(8))
	require.Empty(t, h.objects)
}

func TestHandover_RequiresEqualBytes(t *testing.T) {
	t.Parallel()
	doc := pod("default", "a", "n1")
	o, err := plainSchema.object(podKey("default", "a"), 5, doc)
	require.NoError(t, err)
	own := []handedObject{{o, plainSchema}}
	for name, c := range map[string]Change{
		"revision": {Path: "core/pods/default/a", Value: doc, Revision: 6},
		"name":     {Path: "core/pods/default/ab", Value: doc, Revision: 5},
		"cluster":  {Path: "core/pods/a", Value: doc, Revision: 5},
		"bytes":    {Path: "core/pods/default/a", Value: pod("default", "a", "n2"), Revision: 5},
		"deleted":  {Path: "core/pods/default/a", Revision: 5},
	} {
		_, ok := find(own, &c)
		require.False(t, ok, name)
	}
	ch, ok := find(own, &Change{Path: "core/pods/default/a", Value: doc, Revision: 5})
	require.True(t, ok)
	require.Same(t, o, ch.object)
}

// Collections may be opened with other options while writes are under way.
func TestHandover_ObjectsFollowTheirCollectionsSchema(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, pods := startPods(t, Options{})
	var writing sync.WaitGroup
	for i := range 4 {
		writing.Go(func() {
			for j := range 50 {
				key := podKey("default", fmt.Sprintf("p%d-%d", i, j))
				if _, err := s.Commit(ctx,
					Write{Op: Create, Key: key, Value: pod("default", key.Name, "n1")}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 20 {
		s.Collection(podsName, []CollectionOptions{podOptions, {}}[i%2])
	}
	s.Collection(podsName, podOptions)
	writing.Wait()
	list, err := pods.List(ctx, ListRequest{Scope: Scope{IndexValue: "n1"}})
	require.NoError(t, err)
	require.Len(t, list.Items, 200)
}
