package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// opener decrypts documents that a backend has stored.
type opener interface {
	Open(ctx context.Context, kv *KV)
}

// saved returns the documents of a store, decrypted.
func saved(t testing.TB, s *Store) []KV {
	t.Helper()
	var documents []KV
	_, err := s.Save(testContext(t), func(kv KV) error {
		if b, ok := s.backend.Backend.(opener); ok {
			b.Open(testContext(t), &kv)
		}
		documents = append(documents, kv)
		return nil
	})
	require.NoError(t, err)
	return documents
}

func restore(t testing.TB, s *Store, r RestoreRequest) int64 {
	t.Helper()
	revision, err := s.Restore(testContext(t), r)
	require.NoError(t, err)
	return revision
}

func TestRestore_WritesTheDifferencesInOneTransaction(t *testing.T) {
	t.Parallel()
	s, c := startPods(t, Options{})
	create(t, s, podKey("a", "kept"), pod("a", "kept", ""))
	changed := create(t, s, podKey("a", "changed"), pod("a", "changed", "", "k=before"))
	deleted := create(t, s, podKey("b", "deleted"), pod("b", "deleted", ""))
	lease := create(t, s, podKey("b", "lease"), pod("b", "lease", "", "renewed=before"))
	documents := saved(t, s)
	require.Len(t, documents, 4)

	update(t, s, changed, pod("a", "changed", "", "k=after"))
	update(t, s, lease, pod("b", "lease", "", "renewed=after"))
	remove(t, s, deleted)
	create(t, s, podKey("c", "new"), pod("c", "new", ""))
	last := create(t, s, podKey("c", "presence"), pod("c", "presence", ""))
	w := watch(t, c, WatchRequest{From: last.Revision})

	revision := restore(t, s, RestoreRequest{Documents: documents,
		Ignore:      func(path string) bool { return strings.HasSuffix(path, "/presence") },
		KeepPresent: func(path string) bool { return strings.HasSuffix(path, "/lease") },
	})
	require.Greater(t, revision, last.Revision+1, "no object has the revision before")
	require.Equal(t, []string{
		fmt.Sprint("MODIFIED a/changed ", revision), fmt.Sprint("ADDED b/deleted ", revision),
		fmt.Sprint("DELETED c/new ", revision),
	}, briefs(take(t, w, 3)))
	all, err := c.List(testContext(t), ListRequest{})
	require.NoError(t, err)
	require.Equal(t, []string{"a/changed", "a/kept", "b/deleted", "b/lease", "c/presence"}, names(all.Items))
	require.Contains(t, string(all.Items[0].JSON), `"k":"before"`)
	require.Contains(t, string(all.Items[3].JSON), `"renewed":"after"`)
	require.Equal(t, revision+1, restore(t, s, RestoreRequest{Documents: saved(t, s)}), "nothing differs")
}

// TestRestore_DeletesAnObjectThatWasCreatedAgain also reads the events from etcd's history, in another store.
func TestRestore_DeletesAnObjectThatWasCreatedAgain(t *testing.T) {
	t.Parallel()
	s, c := startPods(t, Options{})
	first := create(t, s, podKey("a", "web"), pod("a", "web", ""))
	documents := saved(t, s)
	remove(t, s, first)
	other := strings.Replace(string(pod("a", "web", "")), "uid-web", "uid-other", 1)
	last := create(t, s, podKey("a", "web"), []byte(other))
	w := watch(t, c, WatchRequest{From: last.Revision})
	revision := restore(t, s, RestoreRequest{Documents: documents})
	want := []string{fmt.Sprint("DELETED a/web ", revision-1), fmt.Sprint("ADDED a/web ", revision)}
	events := take(t, w, 2)
	require.Equal(t, want, briefs(events))
	require.Equal(t, "uid-other", events[0].Object.UID)
	require.Equal(t, first.UID, events[1].Object.UID)
	require.Equal(t, want[1:], briefs(take(t, watch(t, c, WatchRequest{From: revision - 1}), 1)))

	later := openStore(t, s.backend.Backend, Options{}).Collection(podsName, podOptions)
	require.Equal(t, want, briefs(take(t, watch(t, later, WatchRequest{From: last.Revision}), 2)))
}

func TestRestore_IsLargerThanACommit(t *testing.T) {
	t.Parallel()
	s, c := startPods(t, Options{})
	padding := "padding=" + strings.Repeat("x", 8<<10)
	var documents []KV
	for i := range 400 {
		name := fmt.Sprintf("p%04d", i)
		documents = append(documents, KV{Path: podKey("a", name).String(), Value: pod("a", name, "n", padding)})
	}
	revision := restore(t, s, RestoreRequest{Documents: documents})
	all, err := c.List(testContext(t), ListRequest{At: At{Revision: revision, Exact: true}})
	require.NoError(t, err)
	require.Len(t, all.Items, len(documents))
	restore(t, s, RestoreRequest{})
	require.Zero(t, c.Count())
	_, err = s.Commit(testContext(t), Write{Op: Create, Key: podKey("a", "large"),
		Value: pod("a", "large", "", "k="+strings.Repeat("x", 2<<20))})
	require.ErrorIs(t, err, ErrTooLarge, "a commit has etcd's usual limits")
}

func TestRestore_ChangesNothingIfADocumentIsInvalid(t *testing.T) {
	t.Parallel()
	s, c := startPods(t, Options{})
	create(t, s, podKey("a", "web"), pod("a", "web", ""))
	valid := KV{Path: podKey("a", "new").String(), Value: pod("a", "new", "")}
	for reason, documents := range map[string][]KV{
		"core/pods/b/bad":      {valid, {Path: "core/pods/b/bad", Value: []byte("k8s:enc:…")}},
		"cannot be decrypted":  {valid, {Path: "core/pods/b/bad", Err: errors.New("no key")}},
		"is not <group>":       {{Path: "aaa", Value: []byte("{}")}, valid},
		"the order of paths":   {{Path: "core/pods/b/bad"}, valid},
		"a metadata.resourceV": {{Path: "core/pods/a/x", Value: []byte(`{"metadata":{"resourceVersion":"7"}}`)}},
	} {
		_, err := s.Restore(testContext(t), RestoreRequest{Documents: documents})
		require.ErrorContains(t, err, reason)
		all, err := c.List(testContext(t), ListRequest{})
		require.NoError(t, err)
		require.Equal(t, []string{"a/web"}, names(all.Items))
	}
}

func TestRestore_KeepsTimesToLive(t *testing.T) {
	t.Parallel()
	s, c := startPods(t, Options{})
	for name, ttl := range map[string]time.Duration{"long": time.Hour, "short": 2 * time.Second} {
		_, err := s.Commit(testContext(t), Write{Op: Create, Key: podKey("a", name), Value: pod("a", name, ""), TTL: ttl})
		require.NoError(t, err)
	}
	documents := saved(t, s)
	require.InDelta(t, time.Hour, documents[0].TTL, float64(4*time.Minute), "leases are shared")
	require.Positive(t, documents[1].TTL)
	restore(t, s, RestoreRequest{})
	restore(t, s, RestoreRequest{Documents: documents})
	require.Equal(t, 2, c.Count())
	require.InDelta(t, documents[0].TTL, saved(t, s)[0].TTL, float64(8*time.Minute))
	require.Eventually(t, func() bool { return c.Count() == 1 }, patience, 10*time.Millisecond, "its time ends")
}

// TestRestore_WaitsForWritersAndTheyForIt restores two states while writers create and delete objects that are in
// neither. Each restoration shows one of the states as a whole.
func TestRestore_WaitsForWritersAndTheyForIt(t *testing.T) {
	t.Parallel()
	s, c := startPods(t, Options{})
	state := func(label string) []KV {
		var documents []KV
		for i := range 50 {
			name := fmt.Sprintf("p%02d", i)
			documents = append(documents, KV{Path: podKey("a", name).String(), Value: pod("a", name, "", "state="+label)})
		}
		return documents
	}
	ctx, cancel := context.WithCancel(testContext(t))
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := podKey("b", fmt.Sprintf("w%d-%d", w, i))
				_, _ = s.Commit(ctx, Write{Op: Create, Key: key, Value: pod("b", key.Name, "")})
			}
		})
	}
	for i := range 20 {
		label := fmt.Sprint(i % 2)
		revision := restore(t, s, RestoreRequest{Documents: state(label)})
		all, err := c.List(testContext(t), ListRequest{At: At{Revision: revision, Exact: true}})
		require.NoError(t, err)
		require.Len(t, all.Items, 50)
		for _, o := range all.Items {
			require.Contains(t, string(o.JSON), fmt.Sprintf(`"state":%q`, label))
		}
	}
	cancel()
	writers.Wait()
}
