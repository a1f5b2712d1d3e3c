package storage

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lossyBackend breaks the store's watch and blocks new ones until it is repaired.
type lossyBackend struct {
	Backend
	mu       sync.Mutex
	breaks   chan struct{} // closed to break the watch that is open
	repaired chan struct{} // closed to let watches through again
}

func newLossyBackend(b Backend) *lossyBackend {
	open := make(chan struct{})
	close(open)
	return &lossyBackend{Backend: b, breaks: make(chan struct{}), repaired: open}
}

// cut breaks the watch; repair lets the next one through.
func (l *lossyBackend) cut() (repair func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	repaired := make(chan struct{})
	l.repaired = repaired
	close(l.breaks)
	l.breaks = make(chan struct{})
	return func() { close(repaired) }
}

func (l *lossyBackend) Watch(ctx context.Context, r FollowRequest) <-chan WatchBatch {
	l.mu.Lock()
	breaks, repaired := l.breaks, l.repaired
	l.mu.Unlock()
	out := make(chan WatchBatch)
	go func() {
		defer close(out)
		select {
		case <-repaired:
		case <-ctx.Done():
			return
		}
		inner, cancel := context.WithCancel(ctx)
		defer cancel()
		batches := l.Backend.Watch(inner, r)
		defer func() {
			cancel()
			for range batches {
			}
		}()
		for {
			select {
			case batch, ok := <-batches:
				if !ok {
					return
				}
				select {
				case <-breaks: // no change passes after the cut
					batch = WatchBatch{Err: ErrUnavailable}
				default:
				}
				select {
				case out <- batch:
				case <-ctx.Done():
					return
				}
				if batch.Err != nil {
					return
				}
			case <-breaks:
				select {
				case out <- WatchBatch{Err: ErrUnavailable}:
				case <-ctx.Done():
				}
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// brokenStore opens two stores on one backend. cut breaks the watch of the first; the second one writes.
func brokenStore(t *testing.T) (b *lossyBackend, broken, writer *Store) {
	b = newLossyBackend(startBackend(t))
	broken, writer = openStore(t, b, Options{}), openStore(t, b.Backend, Options{})
	writer.Collection(podsName, podOptions)
	return b, broken, writer
}

func TestResync_ContinuesABrokenWatch(t *testing.T) {
	t.Parallel()
	b, broken, writer := brokenStore(t)
	pods := broken.Collection(podsName, podOptions)
	w := watch(t, pods, WatchRequest{})
	o := create(t, writer, podKey("default", "a"), pod("default", "a", ""))
	take(t, w, 1)
	repair := b.cut()
	require.Eventually(t, func() bool { return broken.Ready(testContext(t)) != nil }, patience, time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	var want []string
	for range 5 {
		o = update(t, writer, o, pod("default", "a", ""))
		want = append(want, brief(Event{Type: Modified, Object: o, Revision: o.Revision}))
	}
	cancel()
	_, err := pods.Get(ctx, "default", "a", At{})
	require.ErrorIs(t, err, ErrUnavailable)
	repair()
	require.Equal(t, want, briefs(take(t, w, 5)))
	require.Eventually(t, func() bool { return broken.Ready(testContext(t)) == nil }, patience, time.Millisecond)
}

// The changes made while the watch was cut are compacted: watchers get the difference, no more, no
// less.
func TestResync_AppliesTheDifferenceAfterCompaction(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b, broken, writer := brokenStore(t)
	pods := broken.Collection(podsName, podOptions)
	same := create(t, writer, podKey("default", "same"), pod("default", "same", ""))
	changed := create(t, writer, podKey("default", "changed"), pod("default", "changed", "n1"))
	deleted := create(t, writer, podKey("default", "deleted"), pod("default", "deleted", "n1"))
	replaced := create(t, writer, podKey("default", "replaced"), pod("default", "replaced", ""))
	w := watch(t, pods, WatchRequest{InitialEvents: true})
	take(t, w, 5)
	repair := b.cut()

	changed = update(t, writer, changed, pod("default", "changed", "n2"))
	deletion := remove(t, writer, deleted)
	brief1 := create(t, writer, podKey("default", "brief"), pod("default", "brief", ""))
	remove(t, writer, brief1)
	remove(t, writer, replaced)
	replaced = create(t, writer, podKey("default", "replaced"), []byte(`{"metadata":{"uid":"another"}}`))
	added := create(t, writer, podKey("default", "added"), pod("default", "added", "n2"))
	require.NoError(t, b.Compact(ctx, added.Revision))
	repair()

	events := take(t, w, 5)
	require.Equal(t, []string{
		"MODIFIED default/changed", "DELETED default/replaced", "ADDED default/replaced", "ADDED default/added",
		"DELETED default/deleted",
	}, withoutRevisions(events))
	require.Equal(t, changed, events[0].Object)
	require.Equal(t, "uid-replaced", events[1].Object.UID)
	require.Equal(t, replaced, events[2].Object)
	require.Equal(t, added, events[3].Object)
	require.GreaterOrEqual(t, events[4].Revision, deletion.Revision)
	for i := range events[1:] {
		require.LessOrEqual(t, events[i].Revision, events[i+1].Revision)
	}
	list, err := pods.List(ctx, ListRequest{})
	require.NoError(t, err)
	require.Equal(t, []*Object{added, changed, replaced, same}, list.Items)
	indexed, err := pods.List(ctx, ListRequest{Scope: Scope{IndexValue: "n1"}})
	require.NoError(t, err)
	require.Empty(t, indexed.Items)
}

func withoutRevisions(events []Event) []string {
	lines := make([]string, len(events))
	for i, e := range events {
		lines[i] = e.Type.String() + " " + e.Object.Key.Namespace + "/" + e.Object.Key.Name
	}
	return lines
}

// A document that cannot be served is left out, whether it was there from the start or came later.
func TestStore_CorruptDocumentsAreLeftOut(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	put := func(key Key, value string) {
		_, err := b.Commit(ctx, []Write{{Op: Update, Key: key, Value: []byte(value), Expect: AnyRevision}})
		require.NoError(t, err)
	}
	put(podKey("default", "before"), "{")
	put(Key{Collection: "stray"}, "x")
	s := openStore(t, b, Options{})
	pods := s.Collection(podsName, podOptions)
	w := watch(t, pods, WatchRequest{})
	good := create(t, s, podKey("default", "good"), pod("default", "good", ""))
	put(podKey("default", "after"), `{"metadata":null}`)
	put(good.Key, "\x00")
	put(Key{Collection: "core", Name: "pods"}, "{}")
	require.Equal(t, []string{"ADDED default/good", "DELETED default/good"}, withoutRevisions(take(t, w, 2)))
	list, err := pods.List(ctx, ListRequest{})
	require.NoError(t, err)
	require.Empty(t, list.Items)
	require.Empty(t, s.Collections())
	put(good.Key, string(pod("default", "good", "")))
	repaired := take(t, w, 1)[0]
	require.Equal(t, Added, repaired.Type)
	require.Greater(t, repaired.Revision, good.Revision)
}

func TestRevision_CallersShareARequestSentAfterTheyCame(t *testing.T) {
	t.Parallel()
	requests := make(chan struct{})
	answer := make(chan int64)
	q := revisionQuery{ask: func() (int64, error) {
		requests <- struct{}{}
		return <-answer, nil
	}}
	got := make(chan int64, 3)
	join := func() {
		revision, err := q.next(context.Background())
		if err != nil {
			revision = -1
		}
		got <- revision
	}
	go join()
	<-requests
	go join()
	go join()
	require.Eventually(t, func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.pending != nil
	}, patience, time.Millisecond)
	answer <- 1
	require.EqualValues(t, 1, <-got, "the first caller gets the first answer")
	<-requests
	answer <- 2
	require.EqualValues(t, 2, <-got)
	select {
	case revision := <-got:
		require.EqualValues(t, 2, revision)
	case <-requests: // the third came after the second request was sent
		answer <- 3
		require.EqualValues(t, 3, <-got)
	}
	q.close()
}
