package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// locked is a Backend: it cannot read documents that begin with lock while it has no key.
type locked struct {
	Backend
	key atomic.Bool
}

const lock = EncryptedPrefix + "test:v1:key1:"

var errLocked = errors.New("no such key")

func (l *locked) open(kv *KV) {
	document, ok := bytes.CutPrefix(kv.Value, []byte(lock))
	switch {
	case ok && l.key.Load():
		kv.Value, kv.Stale = document, true
	case ok:
		kv.Value, kv.Err = nil, fmt.Errorf("%s: %w", EncryptionOf(kv.Value), errLocked)
	}
}

func (l *locked) Transforms(collection string) bool { return collection == podsName }

func (l *locked) Commit(ctx context.Context, writes []Write) (*Outcome, error) {
	outcome, err := l.Backend.Commit(ctx, writes)
	if err == nil {
		for i := range outcome.Before {
			l.open(&outcome.Before[i])
		}
	}
	return outcome, err
}

func (l *locked) Range(ctx context.Context, r RangeRequest) (*RangeResult, error) {
	result, err := l.Backend.Range(ctx, r)
	if err == nil {
		for i := range result.KVs {
			l.open(&result.KVs[i])
		}
	}
	return result, err
}

func (l *locked) Watch(ctx context.Context, r FollowRequest) <-chan WatchBatch {
	opened := make(chan WatchBatch)
	go func() {
		defer close(opened)
		for batch := range l.Backend.Watch(ctx, r) {
			for i := range batch.Changes {
				c := &batch.Changes[i]
				kv := KV{Value: c.Value}
				l.open(&kv)
				c.Value, c.Err = kv.Value, kv.Err
			}
			select {
			case opened <- batch:
			case <-ctx.Done():
			}
		}
	}()
	return opened
}

// startLocked opens a store on a locked memory backend. put writes to the backend as another server would.
func startLocked(t *testing.T) (l *locked, s *Store, put func(key Key, value string) int64) {
	t.Helper()
	below := StartMemory()
	t.Cleanup(func() { require.NoError(t, below.Close()) })
	l = &locked{Backend: below}
	s = openStore(t, l, Options{})
	return l, s, func(key Key, value string) int64 {
		outcome, err := below.Commit(testContext(t), []Write{{Op: Update, Key: key, Value: []byte(value),
			Expect: AnyRevision}})
		require.NoError(t, err)
		return outcome.Revision
	}
}

func TestDamage_FailsReadsOfTheObjectAndListsWithIt(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	_, s, put := startLocked(t)
	pods := s.Collection(podsName, podOptions)
	for _, name := range []string{"a", "b", "d"} {
		create(t, s, podKey("default", name), pod("default", name, "n1"))
	}
	create(t, s, podKey("other", "x"), pod("other", "x", "n1"))
	revision := put(podKey("default", "c"), lock+string(pod("default", "c", "n1")))

	_, err := pods.Get(ctx, "default", "c", At{})
	var damaged *Damaged
	require.ErrorAs(t, err, &damaged)
	require.Equal(t, Damaged{podKey("default", "c"), revision, damaged.Err}, *damaged)
	require.ErrorContains(t, err, lock)
	_, err = pods.Get(ctx, "default", "c", At{Revision: revision, Exact: true})
	require.ErrorAs(t, err, &damaged)

	for name, r := range map[string]ListRequest{
		"all":       {},
		"namespace": {Scope: Scope{Namespace: "default"}},
		"name":      {Scope: Scope{Namespace: "default", Name: "c"}},
		"index":     {Scope: Scope{IndexValue: "n1"}},
		"labels":    {Scope: Scope{Match: func(*Object) bool { return false }}},
		"past":      {At: At{Revision: revision, Exact: true}},
	} {
		_, err := pods.List(ctx, r)
		require.ErrorAs(t, err, &damaged, name)
		r.Readable = true
		_, err = pods.List(ctx, r)
		require.NoError(t, err, name)
	}
	for name, r := range map[string]ListRequest{
		"namespace": {Scope: Scope{Namespace: "other"}},
		"name":      {Scope: Scope{Namespace: "default", Name: "a"}},
		"past":      {At: At{Revision: revision - 1, Exact: true}},
	} {
		list, err := pods.List(ctx, r)
		require.NoError(t, err, name)
		require.NotEmpty(t, list.Items, name)
	}
	// A page fails only if the object belongs to it.
	page, err := pods.List(ctx, ListRequest{Limit: 2})
	require.NoError(t, err)
	require.Equal(t, []string{"default/a", "default/b"}, names(page.Items))
	_, err = pods.List(ctx, ListRequest{Limit: 2, Continue: page.Continue})
	require.ErrorAs(t, err, &damaged)
	require.Error(t, pods.DamagedIn(Scope{Namespace: "default"}))
	require.NoError(t, pods.DamagedIn(Scope{Namespace: "other"}))
}

func TestDamage_IsNotADeletionToWatchers(t *testing.T) {
	t.Parallel()
	l, s, put := startLocked(t)
	pods := s.Collection(podsName, podOptions)
	a := create(t, s, podKey("default", "a"), pod("default", "a", "n1"))
	w := watch(t, pods, WatchRequest{From: a.Revision})
	put(a.Key, lock+string(pod("default", "a", "n2")))
	b := create(t, s, podKey("default", "b"), pod("default", "b", ""))
	require.Equal(t, []string{brief(Event{Type: Added, Object: b, Revision: b.Revision})}, briefs(take(t, w, 1)))
	_, err := s.Commit(testContext(t), Write{Op: Update, Key: a.Key, Value: pod("default", "a", ""), Expect: a.Revision})
	require.ErrorAs(t, err, new(*Damaged))
	_, err = s.Commit(testContext(t), Write{Op: Create, Key: a.Key, Value: pod("default", "a", "")})
	require.ErrorIs(t, err, ErrExists)

	require.Zero(t, s.Repair(testContext(t)))
	l.key.Store(true)
	require.Equal(t, 1, s.Repair(testContext(t)))
	event := take(t, w, 1)[0]
	require.Equal(t, Modified, event.Type, "watchers had its state from before")
	require.Contains(t, string(event.Object.JSON), `"n2"`)
	got, err := pods.Get(testContext(t), "default", "a", At{})
	require.NoError(t, err)
	require.Equal(t, event.Object, got)
	list, err := pods.List(testContext(t), ListRequest{Scope: Scope{IndexValue: "n2"}})
	require.NoError(t, err)
	require.Equal(t, []string{"default/a"}, names(list.Items))
}

func TestDamage_EndsWithADeletionAtItsRevision(t *testing.T) {
	t.Parallel()
	_, s, put := startLocked(t)
	pods := s.Collection(podsName, podOptions)
	old := create(t, s, podKey("default", "known"), pod("default", "known", ""))
	w := watch(t, pods, WatchRequest{From: old.Revision})
	revision := put(old.Key, lock)
	_, err := pods.Get(testContext(t), "default", "known", At{Revision: revision})
	require.ErrorAs(t, err, new(*Damaged))
	deleted, err := s.Commit(testContext(t), Write{Op: Delete, Key: old.Key, Expect: revision})
	require.NoError(t, err)
	require.Equal(t, []string{fmt.Sprintf("DELETED default/known %d", deleted.Revision)}, briefs(take(t, w, 1)))
	_, err = pods.Get(testContext(t), "default", "known", At{})
	require.ErrorIs(t, err, ErrNotFound)
}

// Clients may have an object from before this server began, when it could be read: they have to list again.
func TestDamage_DeletionOfANeverReadObjectExpiresWatches(t *testing.T) {
	t.Parallel()
	_, s, put := startLocked(t)
	pods := s.Collection(podsName, podOptions)
	a := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	revision := put(podKey("default", "never"), lock)
	idle := watch(t, pods, WatchRequest{From: a.Revision})
	_, err := pods.Get(testContext(t), "default", "never", At{Revision: revision})
	require.ErrorAs(t, err, new(*Damaged))
	deleted, err := s.Commit(testContext(t), Write{Op: Delete, Key: podKey("default", "never"), Expect: revision})
	require.NoError(t, err)
	_, err = idle.Next(testContext(t))
	require.ErrorIs(t, err, ErrExpired)
	_, err = pods.Watch(testContext(t), WatchRequest{From: revision})
	require.ErrorIs(t, err, ErrExpired)
	list, err := pods.List(testContext(t), ListRequest{})
	require.NoError(t, err)
	w := watch(t, pods, WatchRequest{From: list.Revision})
	b := create(t, s, podKey("default", "b"), pod("default", "b", ""))
	require.GreaterOrEqual(t, list.Revision, deleted.Revision)
	require.Equal(t, []string{brief(Event{Type: Added, Object: b, Revision: b.Revision})}, briefs(take(t, w, 1)))
}

func TestDamage_IsDetectedWithoutEncryptionConfigured(t *testing.T) {
	t.Parallel()
	below := StartMemory()
	t.Cleanup(func() { require.NoError(t, below.Close()) })
	first := openStore(t, below, Options{})
	create(t, first, podKey("default", "a"), pod("default", "a", ""))
	_, err := below.Commit(testContext(t), []Write{{Op: Create, Key: podKey("default", "b"), Value: []byte(lock + "x")}})
	require.NoError(t, err)
	for _, s := range []*Store{first, openStore(t, below, Options{})} {
		pods := s.Collection(podsName, podOptions)
		_, err = pods.Get(testContext(t), "default", "b", At{})
		require.ErrorAs(t, err, new(*Damaged))
		require.ErrorContains(t, err, "not configured to decrypt it")
		_, err = pods.Get(testContext(t), "default", "a", At{})
		require.NoError(t, err)
	}
}

func TestStale_ReadsEtcdOnlyForTransformedCollections(t *testing.T) {
	t.Parallel()
	l, s, put := startLocked(t)
	l.key.Store(true)
	pods := s.Collection(podsName, podOptions)
	put(podKey("default", "a"), lock+string(pod("default", "a", "")))
	old, err := pods.Get(testContext(t), "default", "a", At{})
	require.NoError(t, err)
	stale, err := s.Stale(testContext(t), old)
	require.NoError(t, err)
	require.True(t, stale)
	renewed := update(t, s, old, pod("default", "a", ""))
	stale, err = s.Stale(testContext(t), renewed)
	require.NoError(t, err)
	require.False(t, stale)

	ended, cancel := context.WithCancel(testContext(t))
	cancel()
	node := create(t, s, Key{Collection: "core/nodes", Name: "n"}, []byte(`{"metadata":{"name":"n"}}`))
	stale, err = s.Stale(ended, node)
	require.NoError(t, err, "no request was sent")
	require.False(t, stale)
}

func TestEncryptionOf_ContainsNoPartOfTheDocument(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"k8s:enc:aesgcm:v1:key1:\x01\x02:secret": "k8s:enc:aesgcm:v1:key1:",
		"k8s:enc:kms:v2:plugin:\n\x00:":          "k8s:enc:kms:v2:plugin:",
		"k8s:enc:odd":                            "k8s:enc:…",
		"k8s:enc:a:b:\xff:c":                     "k8s:enc:a:b:�:",
		"k8":                                     "k8…",
	} {
		require.Equal(t, want, EncryptionOf([]byte(value)))
	}
}

// A watch that resumes in the past meets documents of encryption keys that are gone.
func TestDamage_LimitsTheBackfill(t *testing.T) {
	t.Parallel()
	l, first, put := startLocked(t)
	a := create(t, first, podKey("default", "a"), pod("default", "a", ""))
	put(a.Key, lock+string(pod("default", "a", "n1")))
	b := create(t, first, podKey("default", "b"), pod("default", "b", ""))
	renewed := put(a.Key, string(pod("default", "a", "n2")))
	later := create(t, first, podKey("default", "c"), pod("default", "c", ""))
	second := openStore(t, l, Options{}).Collection(podsName, podOptions)
	for _, from := range []int64{a.Revision, b.Revision, a.Revision} {
		_, err := second.Watch(testContext(t), WatchRequest{From: from})
		require.ErrorIs(t, err, ErrExpired)
	}
	require.Equal(t, []string{brief(Event{Type: Added, Object: later, Revision: later.Revision})},
		briefs(take(t, watch(t, second, WatchRequest{From: renewed}), 1)))
}
