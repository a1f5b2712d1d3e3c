package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// model is the expected content of a store, as a plain map: every acknowledged commit in the order
// of its revision.
type model struct {
	mu      sync.Mutex
	commits map[int64]map[string]string // revision → path → document, "" when deleted
}

func (m *model) record(writes []Write, result *CommitResult) {
	m.mu.Lock()
	defer m.mu.Unlock()
	changes := map[string]string{}
	for i, w := range writes {
		changes[w.Key.String()] = string(result.Objects[i].JSON)
		if w.Op == Delete {
			changes[w.Key.String()] = ""
		}
	}
	m.commits[result.Revision] = changes
}

// at returns the state at a revision.
func (m *model) at(revision int64) map[string]string {
	state := map[string]string{}
	for _, r := range slices.Sorted(maps.Keys(m.commits)) {
		if r > revision {
			break
		}
		for path, document := range m.commits[r] {
			if state[path] = document; document == "" {
				delete(state, path)
			}
		}
	}
	return state
}

// randomWrites returns one to three writes of distinct keys. Many of them will meet a conflict.
func randomWrites(random *rand.Rand, pods *Collection) []Write {
	var writes []Write
	for _, n := range random.Perm(30)[:1+random.IntN(3)] {
		key := podKey([]string{"a", "a-b", "b"}[n%3], fmt.Sprintf("p%d", n))
		node := fmt.Sprintf("n%d", random.IntN(3))
		w := Write{Op: Create, Key: key,
			Value: pod(key.Namespace, key.Name, node, fmt.Sprintf("r=%d", random.IntN(1000)))}
		if o := pods.get(key.Namespace, key.Name); o != nil {
			w.Op, w.Expect = Update, o.Revision
			if random.IntN(3) == 0 {
				w.Op, w.Value = Delete, nil
			}
		}
		writes = append(writes, w)
	}
	return writes
}

// follower is a watch that checks itself as it goes, and applies its events to a map.
type follower struct {
	collection *Collection
	scope      Scope
	state      map[string]string
	revision   int64
}

// follow reads until the watcher has returned everything up to the last revision.
func (f *follower) follow(ctx context.Context, last func() int64, random *rand.Rand) error {
	for {
		w, err := f.collection.Watch(ctx, WatchRequest{From: f.revision, Scope: f.scope, Bookmarks: true,
			BookmarkEvery: 1e6})
		if err == nil {
			err = f.read(ctx, w, last, random)
			w.Close()
		}
		if errors.Is(err, ErrExpired) {
			err = f.list(ctx)
		}
		if err != nil && !errors.Is(err, errPause) {
			return err
		}
		if end := last(); end > 0 && f.revision >= end {
			return nil
		}
	}
}

// list starts over, as clients do after they have fallen off the log.
func (f *follower) list(ctx context.Context) error {
	l, err := f.collection.List(ctx, ListRequest{Scope: f.scope})
	if err == nil && l.Revision < f.revision {
		err = fmt.Errorf("a list at %d after a watch at %d", l.Revision, f.revision)
	}
	if err != nil {
		return err
	}
	f.state, f.revision = map[string]string{}, l.Revision
	for _, o := range l.Items {
		f.state[o.Key.String()] = string(o.JSON)
	}
	return nil
}

var errPause = errors.New("the watcher goes away for a while")

func (f *follower) read(ctx context.Context, w *Watcher, last func() int64, random *rand.Rand) error {
	for {
		if end := last(); end > 0 && f.revision >= end {
			return nil
		}
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range batch {
			if err := f.apply(e); err != nil {
				return err
			}
		}
		f.revision = max(f.revision, batch[len(batch)-1].Revision)
		if random.IntN(20) == 0 {
			return errPause
		}
	}
}

func (f *follower) apply(e Event) error {
	if e.Revision < f.revision {
		return fmt.Errorf("not ordered: %s after revision %d", brief(e), f.revision)
	}
	if e.Type == Bookmark {
		return nil
	}
	if e.Revision == f.revision {
		return fmt.Errorf("not unique: %s was in the batch before", brief(e))
	}
	path := e.Object.Key.String()
	_, exists := f.state[path]
	switch {
	case e.Type == Added && exists, e.Type != Added && !exists:
		return fmt.Errorf("not reliable: %s, existed before: %v", brief(e), exists)
	case e.Type == Deleted:
		delete(f.state, path)
	default:
		f.state[path] = string(e.Object.JSON)
	}
	return nil
}

// Many writers and watchers, a log so short that watchers fall off it, and a plain map.
func TestStore_BehavesLikeAMap(t *testing.T) {
	t.Parallel()
	const writers, commits, watchers = 4, 150, 12
	ctx := testContext(t)
	s, pods := startPods(t, Options{LogEvents: 48})
	m := &model{commits: map[int64]map[string]string{}}
	start := s.Frontier()

	var end int64
	var endMu sync.Mutex
	last := func() int64 {
		endMu.Lock()
		defer endMu.Unlock()
		return end
	}
	followers := make([]*follower, watchers)
	var following, writing sync.WaitGroup
	failures := make(chan error, watchers+writers)
	for i := range followers {
		f := &follower{collection: pods, state: map[string]string{}, revision: start}
		f.scope = []Scope{{}, {Namespace: "a"}, {IndexValue: "n1"}, {Namespace: "b", Name: "p2"},
			{Match: oddLabel}}[i%5]
		followers[i] = f
		following.Go(func() { failures <- f.follow(ctx, last, rand.New(rand.NewPCG(uint64(i), 1))) })
	}
	for i := range writers {
		writing.Go(func() { failures <- writeAtRandom(ctx, s, pods, m, commits, rand.New(rand.NewPCG(uint64(i), 2))) })
	}
	writing.Wait()
	revision, err := s.Revision(ctx)
	require.NoError(t, err)
	endMu.Lock()
	end = revision
	endMu.Unlock()
	following.Wait()
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}

	sc := pods.schema.Load()
	final := m.at(revision)
	for i, f := range followers {
		want := map[string]string{}
		for path, document := range final {
			if o := parsed(t, sc, path, document); f.scope.holds(sc, o) {
				want[path] = document
			}
		}
		require.Equal(t, want, f.state, "watcher %d", i)
	}
	for r := start; r <= revision; r += 1 + (revision-start)/20 {
		list, err := pods.List(ctx, ListRequest{At: At{Revision: max(r, 1), Exact: true}})
		require.NoError(t, err)
		got := map[string]string{}
		for _, o := range list.Items {
			got[o.Key.String()] = string(o.JSON)
		}
		require.Equal(t, m.at(r), got, "at revision %d", r)
	}
}

func oddLabel(o *Object) bool { return strings.ContainsAny(o.Labels.Get("r"), "13579") }

func parsed(t *testing.T, sc *schema, path, document string) *Object {
	key, err := ParseKey(path)
	require.NoError(t, err)
	o, err := sc.object(key, 1, []byte(document))
	require.NoError(t, err)
	return o
}

func writeAtRandom(ctx context.Context, s *Store, pods *Collection, m *model, commits int, random *rand.Rand) error {
	for range commits {
		writes := randomWrites(random, pods)
		result, err := s.Commit(ctx, writes...)
		var conflict *Conflict
		switch {
		case err == nil:
			m.record(writes, result)
		case !errors.As(err, &conflict) && !errors.Is(err, ErrExists) && !errors.Is(err, ErrNotFound):
			return err
		default: // memory was behind
			if _, err := s.Revision(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
