package storage

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

// rounds moves the clock on, a round of compaction at a time.
func rounds(t testing.TB, s *Store, fake *clocktesting.FakeClock, n int, every time.Duration) {
	t.Helper()
	for range n {
		before, err := s.backend.Note(testContext(t))
		require.NoError(t, err)
		step(t, fake, every)
		require.Eventually(t, func() bool {
			note, err := s.backend.Note(testContext(t))
			require.NoError(t, err)
			return note.Revision > before.Revision
		}, patience, time.Millisecond)
	}
}

// past can be read in three ways: as a list, as the next page, and by a watch.
type past struct {
	revision int64
	token    string
}

func (p past) list(t testing.TB, c *Collection) error {
	_, err := c.List(testContext(t), ListRequest{At: At{Revision: p.revision, Exact: true}})
	return err
}

func (p past) page(t testing.TB, c *Collection) (*List, error) {
	return c.List(testContext(t), ListRequest{Limit: 1, Continue: p.token})
}

func (p past) watch(t testing.TB, c *Collection) error {
	w, err := c.Watch(testContext(t), WatchRequest{From: p.revision})
	if err == nil {
		w.Close()
	}
	return err
}

func pastOf(t testing.TB, s *Store, c *Collection) past {
	t.Helper()
	for _, name := range []string{"a", "b", "c"} {
		create(t, s, podKey("default", name), pod("default", name, ""))
	}
	first, err := c.List(testContext(t), ListRequest{Limit: 1})
	require.NoError(t, err)
	return past{first.Revision, first.Continue}
}

// An old state expires even if memory still holds it, because there was no change since.
func TestPast_ExpiresWithTheRetention(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakeClock(noon)
	s, pods := startPods(t, Options{Clock: fake, HistoryRetention: 20 * time.Second,
		CompactionInterval: 10 * time.Second})
	then := pastOf(t, s, pods)
	rounds(t, s, fake, 1, 10*time.Second)
	require.NoError(t, then.list(t, pods))
	require.NoError(t, then.watch(t, pods))
	_, err := pods.Get(testContext(t), "default", "a", At{Revision: then.revision, Exact: true})
	require.NoError(t, err)
	_, err = then.page(t, pods)
	require.NoError(t, err)

	another := Key{Collection: "core/secrets", Namespace: "default", Name: "x"}
	create(t, s, another, []byte(`{}`)) // moves the revision on
	rounds(t, s, fake, 14, 10*time.Second)
	require.ErrorIs(t, then.list(t, pods), ErrExpired)
	require.ErrorIs(t, then.watch(t, pods), ErrExpired)
	_, err = pods.Get(testContext(t), "default", "a", At{Revision: then.revision, Exact: true})
	require.ErrorIs(t, err, ErrExpired)
	_, err = then.page(t, pods)
	require.ErrorIs(t, err, ErrExpired)
	w := watch(t, pods, WatchRequest{From: then.revision, InitialEvents: true})
	require.Len(t, take(t, w, 4), 4, "a state that is not older than the revision can still be read")
}

// How long a token is valid does not depend on how long history is kept.
func TestPast_PageTokenExpiresAfterFiveMinutes(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"an hour of history": {}, "less history than that": {HistoryRetention: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := clocktesting.NewFakeClock(noon)
			o.Clock = fake
			s, pods := startPods(t, o)
			then := pastOf(t, s, pods)
			create(t, s, podKey("default", "b2"), pod("default", "b2", ""))
			rounds(t, s, fake, 1, 5*time.Minute)
			pods.mu.Lock()
			pods.keptSnapshots.clear()
			pods.mu.Unlock()
			second, err := then.page(t, pods)
			require.NoError(t, err)
			require.Equal(t, []string{"default/b"}, names(second.Items))

			fake.Step(time.Millisecond)
			_, err = past{token: second.Continue}.page(t, pods)
			require.ErrorIs(t, err, ErrExpired, "the list counts, not the page")
			_, err = then.page(t, pods)
			var stale *StaleToken
			require.ErrorAs(t, err, &stale)
			next, err := past{token: stale.Continue}.page(t, pods)
			require.NoError(t, err)
			require.Equal(t, []string{"default/b"}, names(next.Items))
			require.Greater(t, next.Revision, then.revision)
			last, err := past{token: next.Continue}.page(t, pods)
			require.NoError(t, err)
			require.Equal(t, []string{"default/b2"}, names(last.Items))
			require.Equal(t, next.Revision, last.Revision)
			if o.HistoryRetention == 0 {
				require.NoError(t, then.list(t, pods))
				require.NoError(t, then.watch(t, pods))
			}
		})
	}
}

// History expires on a server that leaves the compaction to another one, too.
func TestPast_ExpiresOnEveryServer(t *testing.T) {
	t.Parallel()
	b := startBackend(t)
	first, second := openByHand(t, b, time.Hour), openByHand(t, b, time.Hour)
	pods := second.Collection(podsName, podOptions)
	then := pastOf(t, first, pods)
	for i := range 14 {
		create(t, first, Key{Collection: "core/secrets", Namespace: "default", Name: fmt.Sprint(i)}, []byte(`{}`))
		round(t, first, noon.Add(time.Duration(i)*5*time.Minute))
		round(t, second, noon.Add(time.Duration(i)*5*time.Minute+time.Second))
	}
	_, err := second.Revision(testContext(t))
	require.NoError(t, err)
	require.ErrorIs(t, then.list(t, pods), ErrExpired)
	require.ErrorIs(t, then.watch(t, pods), ErrExpired)
}

func TestPast_IsRejectedByTheScope(t *testing.T) {
	t.Parallel()
	s, pods := startPods(t, Options{})
	then := pastOf(t, s, pods)
	var revisions []int64
	reason := errors.New("refused")
	scope := Scope{Past: func(_ context.Context, revision int64) error {
		revisions = append(revisions, revision)
		return reason
	}}
	list := func(r ListRequest) error {
		r.Scope = scope
		_, err := pods.List(testContext(t), r)
		return err
	}
	require.NoError(t, list(ListRequest{}))
	require.NoError(t, list(ListRequest{At: At{Revision: then.revision}}))
	require.Empty(t, revisions, "the present is no past")
	require.ErrorIs(t, list(ListRequest{At: At{Revision: then.revision, Exact: true}}), reason)
	require.ErrorIs(t, list(ListRequest{Continue: then.token}), reason)
	_, err := pods.Watch(testContext(t), WatchRequest{Scope: scope, From: then.revision})
	require.ErrorIs(t, err, reason)
	require.Equal(t, []int64{then.revision, then.revision, then.revision}, revisions)

	reason = ErrExpired
	var stale *StaleToken
	require.ErrorAs(t, list(ListRequest{Continue: then.token}), &stale)
	require.NoError(t, list(ListRequest{Continue: stale.Continue}))
}

func TestSameSince(t *testing.T) {
	t.Parallel()
	b := startBackend(t)
	s := openStore(t, b, Options{})
	begun := create(t, s, podKey("", "other"), pod("", "other", "")).Revision
	existing := create(t, s, podKey("", "kept"), pod("", "kept", ""))
	existing = update(t, s, existing, pod("", "kept", "n1"))
	remade := remove(t, s, create(t, s, podKey("", "remade"), pod("", "remade-first", "")))
	remade = create(t, s, remade.Key, pod("", "remade-second", ""))
	swapped := create(t, s, podKey("", "swapped"), pod("", "swapped-first", ""))
	swapped = update(t, s, swapped, pod("", "swapped-second", "")) // as seen by a reader that missed the deletion
	deleted := remove(t, s, create(t, s, podKey("", "gone"), pod("", "gone", "")))
	stranger := openStore(t, b, Options{}) // must ask etcd for earlier states

	for _, c := range []struct {
		name     string
		since    int64
		same     bool
		unknown  bool // to a server that was not there: it assumes a change
		scenario string
	}{
		{"kept", existing.Revision - 1, true, false, "changed since"},
		{"kept", existing.Revision, true, false, "not changed since"},
		{"kept", begun, false, false, "made since"},
		{"remade", remade.Revision - 2, false, false, "another of the name then"},
		{"remade", remade.Revision - 1, false, false, "none then"},
		{"remade", remade.Revision, true, false, "made then"},
		{"swapped", swapped.Revision - 1, false, false, "another of the name then"},
		{"gone", begun, false, false, "none then and none now, but between"},
		{"gone", deleted.Revision - 1, false, false, "there then"},
		{"gone", deleted.Revision, true, false, "gone then"},
		{"never", begun, true, true, "never there"},
		{"never", deleted.Revision, true, false, "never there"},
	} {
		for server, store := range map[string]*Store{"from memory": s, "from etcd": stranger} {
			_, err := store.Revision(testContext(t))
			require.NoError(t, err)
			err = store.Collection(podsName, podOptions).SameSince(testContext(t), "", c.name, c.since)
			if c.same && (!c.unknown || store == s) {
				require.NoError(t, err, "%s: %s, %s", c.name, c.scenario, server)
			} else {
				require.ErrorIs(t, err, ErrExpired, "%s: %s, %s", c.name, c.scenario, server)
			}
		}
	}
}
