package storage

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWatch_Ordered(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	w := watch(t, pods, WatchRequest{})
	for i := range 300 {
		create(t, s, podKey("default", fmt.Sprintf("p%03d", 299-i)), pod("default", "p", ""))
	}
	last := int64(0)
	for _, e := range take(t, w, 300) {
		require.Greater(t, e.Revision, last)
		require.Equal(t, e.Revision, e.Object.Revision)
		last = e.Revision
	}
}

// Initial state and log meet without an event that is delivered twice or not at all.
func TestWatch_Unique(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	const before, after = 600, 200
	written := make(chan error, 1)
	for i := range before {
		create(t, s, podKey("default", fmt.Sprintf("a%03d", i)), pod("default", "a", ""))
	}
	w := watch(t, pods, WatchRequest{InitialEvents: true})
	go func() {
		for i := range after {
			key := podKey("default", fmt.Sprintf("b%03d", i))
			if _, err := s.Commit(context.Background(),
				Write{Op: Create, Key: key, Value: pod("default", "b", "")}); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	seen := map[string]int{}
	for _, e := range take(t, w, before+1+after) {
		seen[brief(e)[:6]+e.Type.String()]++
		if e.Object != nil {
			seen[e.Object.Key.Name]++
			require.Equal(t, 1, seen[e.Object.Key.Name], brief(e))
		}
	}
	require.NoError(t, <-written)
}

func TestWatch_Atomic(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	w := watch(t, pods, WatchRequest{})
	const commits, size = 30, 100
	for i := range commits {
		writes := make([]Write, size)
		for j := range writes {
			writes[j] = Write{Op: Create, Key: podKey("default", fmt.Sprintf("p-%d-%d", i, j)),
				Value: pod("default", "p", "")}
		}
		_, err := s.Commit(testContext(t), writes...)
		require.NoError(t, err)
	}
	for got := 0; got < commits*size; {
		batch, err := w.Next(testContext(t))
		require.NoError(t, err)
		require.Zero(t, len(batch)%size, "a batch has whole revisions")
		for i, e := range batch {
			require.Equal(t, batch[i/size*size].Revision, e.Revision)
		}
		got += len(batch)
	}
}

// A watcher's events, applied to an empty map, give the final state.
func TestWatch_Reliable(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{LogEvents: 32})
	w := watch(t, pods, WatchRequest{From: s.Frontier(), Scope: Scope{Namespace: "mine"}})
	var mine *Object
	for i := range 200 { // overflows the log, but not with events for this watcher
		create(t, s, podKey("other", fmt.Sprintf("p%d", i)), pod("other", "p", ""))
	}
	mine = create(t, s, podKey("mine", "a"), pod("mine", "a", ""))
	require.Equal(t, []string{fmt.Sprintf("ADDED mine/a %d", mine.Revision)}, briefs(take(t, w, 1)))
	for i := range 200 {
		create(t, s, podKey("other", fmt.Sprintf("q%d", i)), pod("other", "q", ""))
	}
	deleted := remove(t, s, mine)
	require.Equal(t, []string{fmt.Sprintf("DELETED mine/a %d", deleted.Revision)}, briefs(take(t, w, 1)))
}

func TestWatch_ExpiresForSlowWatchersOnly(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{LogEvents: 16})
	slow := watch(t, pods, WatchRequest{})
	quick := watch(t, pods, WatchRequest{})
	for i := range 40 {
		create(t, s, podKey("default", fmt.Sprintf("p%02d", i)), pod("default", "p", ""))
		take(t, quick, 1)
	}
	_, err := slow.Next(testContext(t))
	require.ErrorIs(t, err, ErrExpired)
	create(t, s, podKey("default", "z"), pod("default", "z", ""))
	take(t, quick, 1)
}

func TestWatch_ExpiresByBytes(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{LogBytes: 8 << 10})
	slow := watch(t, pods, WatchRequest{})
	document := fmt.Appendf(nil, `{"metadata":{},"data":%q}`, strings.Repeat("x", 3<<10))
	o := create(t, s, podKey("default", "p"), document)
	for range 4 {
		o = update(t, s, o, document)
	}
	_, err := pods.List(testContext(t), ListRequest{})
	require.NoError(t, err)
	_, err = slow.Next(testContext(t))
	require.ErrorIs(t, err, ErrExpired)
}

// The tree holds new objects, so they do not count in the log's size.
func TestWatch_NewObjectsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{LogBytes: 8 << 10})
	slow := watch(t, pods, WatchRequest{})
	document := fmt.Appendf(nil, `{"metadata":{},"data":%q}`, strings.Repeat("x", 3<<10))
	for i := range 8 {
		create(t, s, podKey("default", fmt.Sprintf("p%d", i)), document)
	}
	take(t, slow, 8)
}

// A watcher that resumes from any revision it has seen misses no event and gets none twice, both if
// the revision is in the log and if it is from before the store began.
func TestWatch_Resumable(t *testing.T) {
	t.Parallel()
	b := startBackend(t)
	s := openStore(t, b, Options{})
	pods := s.Collection(podsName, podOptions)
	w := watch(t, pods, WatchRequest{From: s.Frontier()})
	o := create(t, s, podKey("default", "a"), pod("default", "a", "", "app=x"))
	for i := range 20 {
		if i%7 == 6 {
			remove(t, s, o)
			o = create(t, s, podKey("default", "a"), pod("default", "a", ""))
		}
		create(t, s, Key{Collection: "core/nodes", Name: fmt.Sprintf("n%d", i)}, []byte(`{}`))
		o = update(t, s, o, pod("default", "a", "", fmt.Sprintf("app=%d", i)))
	}
	events := take(t, w, 25)
	want := briefs(events)
	late := openStore(t, b, Options{}).Collection(podsName, podOptions)
	for name, c := range map[string]*Collection{"from the log": pods, "from before the store began": late} {
		for i, e := range events[:len(events)-1] {
			again := watch(t, c, WatchRequest{From: e.Revision})
			require.Equal(t, want[i+1:], briefs(take(t, again, len(want)-i-1)), name)
			again.Close()
		}
	}
}

func TestWatch_Bookmarkable(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	w := watch(t, pods, WatchRequest{InitialEvents: true, Bookmarks: true, BookmarkEvery: time.Millisecond,
		Scope: Scope{Namespace: "mine"}})
	end := take(t, w, 1)[0]
	require.True(t, end.InitialEventsEnd)
	o := create(t, s, podKey("other", "a"), pod("other", "a", ""))
	for { // bookmarks advance over changes out of scope
		batch, err := w.Next(testContext(t))
		require.NoError(t, err)
		require.Equal(t, Bookmark, batch[0].Type)
		if batch[0].Revision >= o.Revision {
			break
		}
	}
	require.GreaterOrEqual(t, w.Bookmark().Revision, o.Revision)
	mine := create(t, s, podKey("mine", "a"), pod("mine", "a", ""))
	resumed := watch(t, pods, WatchRequest{From: w.Bookmark().Revision, Scope: Scope{Namespace: "mine"}})
	if w.Bookmark().Revision < mine.Revision {
		require.Equal(t, brief(Event{Type: Added, Object: mine, Revision: mine.Revision}),
			brief(take(t, resumed, 1)[0]))
	}
}

// The initial events come in the order of names: no revision is complete before the last of them.
func TestWatch_SendsNoBookmarkAmidTheInitialEvents(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	const objects = batchSize + 1
	for i := range objects {
		create(t, s, podKey("default", fmt.Sprintf("p%03d", i)), pod("default", "p", ""))
	}
	w := watch(t, pods, WatchRequest{InitialEvents: true, Bookmarks: true, BookmarkEvery: time.Nanosecond})
	var events []Event
	for len(events) <= objects { // a bookmark is due with each batch
		batch, err := w.Next(testContext(t))
		require.NoError(t, err)
		events = append(events, batch...)
	}
	for _, e := range events[:objects] {
		require.Equal(t, Added, e.Type)
	}
	require.True(t, events[objects].InitialEventsEnd)
}

// A bookmark never runs ahead of an event that was not delivered yet.
func TestWatch_BookmarkStaysBehindUndeliveredEvents(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	w := watch(t, pods, WatchRequest{From: s.Frontier()})
	o := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	_, err := pods.Get(testContext(t), "default", "a", At{})
	require.NoError(t, err)
	require.Less(t, w.Bookmark().Revision, o.Revision)
	take(t, w, 1)
	require.GreaterOrEqual(t, w.Bookmark().Revision, o.Revision)
}

func TestWatch_ScopeTransitionsAreAddedAndDeleted(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	from := s.Frontier()
	byLabel := watch(t, pods, WatchRequest{From: from, Scope: Scope{Match: func(o *Object) bool {
		return o.Labels.Get("app") == "web"
	}}})
	byNode := watch(t, pods, WatchRequest{From: from, Scope: Scope{IndexValue: "n1"}})
	byName := watch(t, pods, WatchRequest{From: from, Scope: Scope{Namespace: "default", Name: "a"}})

	other := create(t, s, podKey("default", "other"), pod("default", "other", "n2", "app=db"))
	a1 := create(t, s, podKey("default", "a"), pod("default", "a", "", "app=db"))
	a2 := update(t, s, a1, pod("default", "a", "n1", "app=web"))
	a3 := update(t, s, a2, pod("default", "a", "n1", "app=web", "x=y"))
	a4 := update(t, s, a3, pod("default", "a", "n2", "app=db"))
	a5 := remove(t, s, a4)
	remove(t, s, other)

	line := func(kind EventType, o *Object) string {
		return brief(Event{Type: kind, Object: o, Revision: o.Revision})
	}
	narrow := []string{line(Added, a2), line(Modified, a3), line(Deleted, a4)}
	labelled := take(t, byLabel, 3)
	require.Equal(t, narrow, briefs(labelled))
	require.Equal(t, strings.Replace(string(a3.JSON), fmt.Sprint(a3.Revision), fmt.Sprint(a4.Revision), 1),
		string(labelled[2].Object.JSON),
		"an object that leaves has the last state that was in scope, at the revision of leaving")
	require.Equal(t, narrow, briefs(take(t, byNode, 3)))
	require.Equal(t, []string{line(Added, a1), line(Modified, a2), line(Modified, a3), line(Modified, a4),
		line(Deleted, a5)}, briefs(take(t, byName, 5)))
}

func TestWatch_WaitsForAFutureRevisionAndFails(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	_, err := pods.Watch(testContext(t), WatchRequest{From: s.Frontier() + 1000})
	require.ErrorIs(t, err, ErrFuture)
}

func TestWatch_EndsWithItsContextAndWithTheStore(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	w := watch(t, pods, WatchRequest{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := w.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
	ended := make(chan error)
	go func() {
		_, err := w.Next(context.Background())
		ended <- err
	}()
	require.NoError(t, s.Close())
	require.ErrorIs(t, <-ended, ErrUnavailable)
	w.Close()
	w.Close()
	_, err = pods.Watch(testContext(t), WatchRequest{})
	require.ErrorIs(t, err, ErrUnavailable)
}

// Two of three watches want bookmarks: they learn the store's revision at once, after the events before it.
func TestWatch_SendsABookmarkWhenAsked(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	wants := watch(t, pods, WatchRequest{Bookmarks: true})
	elsewhere := watch(t, pods, WatchRequest{Bookmarks: true, Scope: Scope{Namespace: "elsewhere"}})
	not := watch(t, pods, WatchRequest{})
	create(t, s, podKey("default", "a"), pod("default", "a", ""))
	revision, err := s.Revision(testContext(t))
	require.NoError(t, err)
	s.AskBookmarks()

	got := take(t, wants, 2)
	require.Equal(t, Added, got[0].Type)
	require.Equal(t, Event{Type: Bookmark, Revision: revision}, got[1])
	require.Equal(t, Event{Type: Bookmark, Revision: revision}, take(t, elsewhere, 1)[0])
	require.Equal(t, Added, take(t, not, 1)[0].Type)
	events, err := not.Poll()
	require.NoError(t, err)
	require.Empty(t, events)
}
