package storage

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// readingBackend counts the watches over history.
type readingBackend struct {
	Backend
	readings atomic.Int64
}

func (b *readingBackend) Watch(ctx context.Context, r FollowRequest) <-chan WatchBatch {
	if r.Prefix != "" {
		b.readings.Add(1)
	}
	return b.Backend.Watch(ctx, r)
}

// aged returns a store that began after an object was written n times, and the revisions of the writes.
func aged(t testing.TB, n int, document func(i int) []byte, o Options) (*readingBackend, *Store, []int64) {
	t.Helper()
	b := &readingBackend{Backend: startBackend(t)}
	old := openStore(t, b, Options{})
	old.Collection(podsName, podOptions)
	object := create(t, old, podKey("default", "a"), document(0))
	revisions := []int64{object.Revision}
	for i := 1; i < n; i++ {
		object = update(t, old, object, document(i))
		revisions = append(revisions, object.Revision)
	}
	return b, openStore(t, b, o), revisions
}

func small(i int) []byte { return pod("default", "a", "", fmt.Sprintf("app=%d", i)) }

func TestBackfill_ReadsHistoryOnceForAllWatchers(t *testing.T) {
	t.Parallel()
	b, s, revisions := aged(t, 40, small, Options{})
	pods := s.Collection(podsName, podOptions)
	var resuming sync.WaitGroup
	for i := range 3 * len(revisions) {
		resuming.Go(func() {
			from := i % len(revisions)
			w := watch(t, pods, WatchRequest{From: revisions[from]})
			if rest := len(revisions) - from - 1; rest > 0 {
				take(t, w, rest)
			}
		})
	}
	resuming.Wait()
	require.EqualValues(t, 1, b.readings.Load())
}

// Each backfill goes back twice as far as it must: a client that requests one revision more each time cannot make the
// store read the same history again and again.
func TestBackfill_GoesBackInFewSteps(t *testing.T) {
	t.Parallel()
	const writes = 5 * minBackfill
	b, s, revisions := aged(t, writes, small, Options{})
	pods := s.Collection(podsName, podOptions)
	for i := range revisions {
		watch(t, pods, WatchRequest{From: revisions[len(revisions)-1-i]}).Close()
	}
	require.EqualValues(t, 4, b.readings.Load(), "of 1024, 2050, 4102 and 8206 revisions")
}

// Watchers, fast and slow, go on at their cursors when the log is backfilled.
func TestBackfill_KeepsTheCursorsOfWatchers(t *testing.T) {
	t.Parallel()
	_, s, revisions := aged(t, 20, small, Options{LogEvents: 30})
	pods := s.Collection(podsName, podOptions)
	now := s.Frontier()
	idle, slow := watch(t, pods, WatchRequest{From: now}), watch(t, pods, WatchRequest{From: now})
	o := create(t, s, podKey("default", "b"), pod("default", "b", ""))
	for range 4 {
		o = update(t, s, o, pod("default", "b", ""))
	}
	want := briefs(take(t, idle, 5))
	first := watch(t, pods, WatchRequest{From: revisions[0]})
	require.Equal(t, want, briefs(take(t, first, len(revisions)-1+5)[len(revisions)-1:]))
	require.Equal(t, want, briefs(take(t, slow, 5)))

	for range 24 { // the log drops the entries of the backfill first
		o = update(t, s, o, pod("default", "b", ""))
	}
	take(t, idle, 24)
	take(t, slow, 24)
	_, err := pods.Watch(testContext(t), WatchRequest{From: revisions[0]})
	require.ErrorIs(t, err, ErrExpired)
	watch(t, pods, WatchRequest{From: now}).Close()
}

// A client cannot make the store read more history than the log may hold.
func TestBackfill_IsLimitedLikeTheLog(t *testing.T) {
	t.Parallel()
	t.Run("revisions", func(t *testing.T) {
		t.Parallel()
		b, s, revisions := aged(t, 20, small, Options{LogEvents: 8})
		pods := s.Collection(podsName, podOptions)
		_, err := pods.Watch(testContext(t), WatchRequest{From: revisions[20-1-9]})
		require.ErrorIs(t, err, ErrExpired)
		require.Zero(t, b.readings.Load())
		take(t, watch(t, pods, WatchRequest{From: revisions[20-1-8]}), 8)
	})
	t.Run("bytes", func(t *testing.T) {
		t.Parallel()
		document := fmt.Appendf(nil, `{"metadata":{},"data":%q}`, strings.Repeat("x", 3<<10))
		b, s, revisions := aged(t, 20, func(int) []byte { return document }, Options{LogBytes: 16 << 10})
		pods := s.Collection(podsName, podOptions)
		for range 3 {
			_, err := pods.Watch(testContext(t), WatchRequest{From: revisions[0]})
			require.ErrorIs(t, err, ErrExpired)
		}
		require.EqualValues(t, 1, b.readings.Load(), "the log is full")
		take(t, watch(t, pods, WatchRequest{From: revisions[20-1-4]}), 4)
	})
	t.Run("dropped entries", func(t *testing.T) {
		t.Parallel()
		b, s, revisions := aged(t, 1, small, Options{LogEvents: 4})
		pods := s.Collection(podsName, podOptions)
		o := create(t, s, podKey("default", "b"), pod("default", "b", ""))
		for range 6 {
			o = update(t, s, o, pod("default", "b", ""))
		}
		_, err := s.Revision(testContext(t))
		require.NoError(t, err)
		_, err = pods.Watch(testContext(t), WatchRequest{From: revisions[0]})
		require.ErrorIs(t, err, ErrExpired)
		require.Zero(t, b.readings.Load())
	})
}

// A process with little memory does not read a large history, even for a few revisions: their size is not known before.
func TestBackfill_IsRejectedIfHistoryIsTooLarge(t *testing.T) {
	t.Parallel()
	document := fmt.Appendf(nil, `{"metadata":{},"data":%q}`, strings.Repeat("x", 300<<10))
	b, s, revisions := aged(t, 10, func(int) []byte { return document }, Options{BackfillBytes: 1 << 20})
	pods := s.Collection(podsName, podOptions)
	require.Eventually(t, func() bool {
		status, err := b.Status(testContext(t))
		return err == nil && status.InUse > 2<<20
	}, patience, 10*time.Millisecond, "etcd writes its file in batches")
	_, err := pods.Watch(testContext(t), WatchRequest{From: revisions[8]})
	require.ErrorIs(t, err, ErrExpired)
	require.ErrorContains(t, err, "history takes up to")
	require.Zero(t, b.readings.Load())
	require.NoError(t, b.Compact(testContext(t), revisions[9]))
	create(t, s, podKey("default", "b"), small(0))
	require.Eventually(t, func() bool {
		w, err := pods.Watch(testContext(t), WatchRequest{From: revisions[9]})
		if err == nil {
			w.Close()
		}
		return err == nil
	}, patience, 10*time.Millisecond, "pages of etcd's file are free when it has written them")
}

func TestBackfill_FailsIfHistoryIsCompacted(t *testing.T) {
	t.Parallel()
	b, s, revisions := aged(t, 9, small, Options{})
	pods := s.Collection(podsName, podOptions)
	require.NoError(t, b.Compact(testContext(t), revisions[8]))
	_, err := pods.Watch(testContext(t), WatchRequest{From: revisions[0]})
	require.ErrorIs(t, err, ErrExpired)
	take(t, watch(t, pods, WatchRequest{InitialEvents: true}), 2)
}
