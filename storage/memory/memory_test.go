package memory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/memory"
	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

var noon = time.Date(2031, 1, 1, 12, 0, 0, 0, time.UTC)

func start(t testing.TB, o memory.Options) *memory.Backend {
	t.Helper()
	b := memory.New(o)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func key(name string) storage.Key { return storage.Key{Collection: "a/b", Name: name} }

// put creates or replaces a document and returns its revision.
func put(t testing.TB, b *memory.Backend, name, value string, ttl time.Duration) int64 {
	t.Helper()
	outcome, err := b.Commit(t.Context(), []storage.Write{{Op: storage.Update, Key: key(name), Value: []byte(value),
		Expect: storage.AnyRevision, TTL: ttl}})
	require.NoError(t, err)
	return outcome.Revision
}

func remove(t testing.TB, b *memory.Backend, name string) {
	t.Helper()
	_, err := b.Commit(t.Context(), []storage.Write{{Op: storage.Delete, Key: key(name), Expect: storage.AnyRevision}})
	require.NoError(t, err)
}

// content returns the documents of a backend as "name=value@revision".
func content(t testing.TB, b *memory.Backend) []string {
	t.Helper()
	result, err := b.Range(t.Context(), storage.RangeRequest{Prefix: "a/b/"})
	require.NoError(t, err)
	var all []string
	for _, kv := range result.KVs {
		all = append(all, fmt.Sprintf("%s=%s@%d", kv.Path[len("a/b/"):], kv.Value, kv.Revision))
	}
	return all
}

// follow watches the backend from now on. next returns n changes as "name=value@revision"; a deletion has no value.
func follow(t testing.TB, b *memory.Backend) (next func(n int) []string) {
	t.Helper()
	revision, err := b.Revision(t.Context())
	require.NoError(t, err)
	batches := b.Watch(t.Context(), storage.FollowRequest{From: revision + 1})
	require.Empty(t, (<-batches).Changes)
	return func(n int) (all []string) {
		t.Helper()
		for len(all) < n {
			select {
			case batch := <-batches:
				require.NoError(t, batch.Err)
				for _, c := range batch.Changes {
					value := "=" + string(c.Value)
					if c.Value == nil {
						value = ""
					}
					all = append(all, fmt.Sprintf("%s%s@%d", c.Path[len("a/b/"):], value, c.Revision))
				}
			case <-time.After(time.Minute):
				require.FailNow(t, "no change arrives", "so far: %v", all)
			}
		}
		require.Len(t, all, n)
		return all
	}
}

func TestTTL_ExpiresByTheClockAndNeverEarly(t *testing.T) {
	t.Parallel()
	c := clocktesting.NewFakeClock(noon)
	b := start(t, memory.Options{Clock: c})
	require.False(t, c.HasWaiters(), "no timer without a time to live")
	next := follow(t, b)
	put(t, b, "long", "1", time.Hour)
	put(t, b, "short", "2", 1500*time.Millisecond) // rounded up to seconds
	put(t, b, "kept", "3", time.Second)
	put(t, b, "kept", "4", 0)
	put(t, b, "renewed", "5", time.Second)
	put(t, b, "renewed", "6", time.Hour)
	next(6)
	c.Step(2*time.Second - 1)
	require.Len(t, content(t, b), 4)
	c.Step(1)
	require.Equal(t, []string{"short@8"}, next(1))
	c.Step(time.Hour)
	require.Equal(t, []string{"long@9", "renewed@9"}, next(2), "documents that expire together are deleted at one revision")
	require.Equal(t, []string{"kept=4@5"}, content(t, b))
	require.Eventually(t, func() bool { return !c.HasWaiters() }, time.Minute, time.Millisecond,
		"a timer remains although no document expires")
}

// There is one timer, for the first expiration.
func TestTTL_WaitsOnce(t *testing.T) {
	t.Parallel()
	c := clocktesting.NewFakeClock(noon)
	b := start(t, memory.Options{Clock: c})
	next := follow(t, b)
	for i := range 100 {
		put(t, b, fmt.Sprint(i), "", time.Duration(100-i)*time.Minute)
	}
	next(100)
	require.Eventually(t, func() bool { return c.Waiters() == 1 }, time.Minute, time.Millisecond)
	c.Step(time.Minute)
	require.Equal(t, []string{"99@102"}, next(1))
}

func TestRestore_WritesTheDifferencesOnly(t *testing.T) {
	t.Parallel()
	b := start(t, memory.Options{})
	put(t, b, "kept", "1", 0)
	put(t, b, "changed", "1", 0)
	put(t, b, "changed back", "1", 0)
	put(t, b, "deleted", "1", 0)
	put(t, b, "made again", "1", 0)
	image, err := b.Save(t.Context())
	require.NoError(t, err)
	before := content(t, b)

	revision, err := b.Restore(t.Context(), image)
	require.NoError(t, err)
	require.Equal(t, image.Revision(), revision, "there is no difference")

	put(t, b, "changed", "2", 0)
	put(t, b, "changed back", "2", 0)
	put(t, b, "changed back", "1", 0)
	remove(t, b, "deleted")
	remove(t, b, "made again")
	put(t, b, "made again", "1", 0)
	put(t, b, "new", "1", 0)
	require.NotEqual(t, before, content(t, b))
	now, err := b.Revision(t.Context())
	require.NoError(t, err)
	next := follow(t, b)
	revision, err = b.Restore(t.Context(), image)
	require.NoError(t, err)
	require.Equal(t, now+2, revision)
	require.Equal(t, []string{
		"made again@14", "new@14",
		"changed=1@15", "deleted=1@15", "made again=1@15",
	}, next(5))
	require.Equal(t, []string{"changed=1@15", "changed back=1@9", "deleted=1@15", "kept=1@2", "made again=1@15"},
		content(t, b))
}

func TestRestore_KeepsDocumentsBelowAPrefix(t *testing.T) {
	t.Parallel()
	b := start(t, memory.Options{})
	put(t, b, "a/changed", "1", 0)
	put(t, b, "a/deleted", "1", 0)
	put(t, b, "b/changed", "1", 0)
	image, err := b.Save(t.Context())
	require.NoError(t, err)
	put(t, b, "a/changed", "2", 0)
	remove(t, b, "a/deleted")
	put(t, b, "a/new", "2", 0)
	put(t, b, "b/changed", "2", 0)
	put(t, b, "b/new", "2", 0)
	_, err = b.Restore(t.Context(), image, "a/b/a/")
	require.NoError(t, err)
	require.Equal(t, []string{"a/changed=2@5", "a/new=2@7", "b/changed=1@11"}, content(t, b))
}

func TestRestore_RestoresTheTimeLeft(t *testing.T) {
	t.Parallel()
	c := clocktesting.NewFakeClock(noon)
	b := start(t, memory.Options{Clock: c})
	put(t, b, "there", "1", time.Hour)
	put(t, b, "gone", "2", time.Minute)
	c.Step(30 * time.Second)
	image, err := b.Save(t.Context())
	require.NoError(t, err)
	next := follow(t, b)
	c.Step(30 * time.Second)
	require.Equal(t, []string{"gone@4"}, next(1))
	c.Step(50 * time.Minute)
	_, err = b.Restore(t.Context(), image)
	require.NoError(t, err)
	require.Equal(t, []string{"gone=2@5"}, next(1), "a new expiration is no change")
	c.Step(30 * time.Second)
	require.Equal(t, []string{"gone@6"}, next(1))
	c.Step(59*time.Minute - 1)
	require.Equal(t, []string{"there=1@2"}, content(t, b))
	c.Step(1)
	require.Equal(t, []string{"there@7"}, next(1))
}

func TestImage_StartsIndependentBackends(t *testing.T) {
	t.Parallel()
	first := memory.New(memory.Options{})
	for i := range 2000 {
		put(t, first, fmt.Sprint("o", i), "1", 0)
	}
	image, err := first.Save(t.Context())
	require.NoError(t, err)
	before := content(t, first)
	put(t, first, "late", "", 0)
	require.NoError(t, first.Close())

	var using sync.WaitGroup
	for i := range 8 {
		using.Go(func() {
			b := memory.New(memory.Options{Image: image})
			defer b.Close()
			if i%2 == 0 {
				b = memory.New(memory.Options{})
				defer b.Close()
				_, err := b.Restore(t.Context(), image)
				require.NoError(t, err)
			} else {
				require.Equal(t, before, content(t, b), "including revisions")
				_, err := b.Range(t.Context(), storage.RangeRequest{Revision: image.Revision() - 1})
				require.ErrorIs(t, err, storage.ErrExpired)
			}
			for n := range 100 {
				require.Greater(t, put(t, b, fmt.Sprint("o", 17*n), fmt.Sprint(i), 0), image.Revision())
			}
			require.Len(t, content(t, b), 2000)
		})
	}
	using.Wait()
	last := start(t, memory.Options{Image: image})
	require.Equal(t, before, content(t, last))
}

func TestImage_KeepsTimesToLiveWithAnotherClock(t *testing.T) {
	t.Parallel()
	c := clocktesting.NewFakeClock(noon)
	b := start(t, memory.Options{Clock: c})
	put(t, b, "a", "1", time.Hour)
	c.Step(59 * time.Minute)
	image, err := b.Save(t.Context())
	require.NoError(t, err)

	other := clocktesting.NewFakeClock(noon.AddDate(5, 0, 0))
	fork := start(t, memory.Options{Clock: other, Image: image})
	next := follow(t, fork)
	other.Step(time.Minute - 1)
	require.Equal(t, []string{"a=1@2"}, content(t, fork))
	other.Step(1)
	require.Equal(t, []string{"a@3"}, next(1))
	require.Equal(t, []string{"a=1@2"}, content(t, b))
}

func TestImage_OmitsDocumentsBelowAPrefix(t *testing.T) {
	t.Parallel()
	c := clocktesting.NewFakeClock(noon)
	b := start(t, memory.Options{Clock: c})
	put(t, b, "a", "1", 0)
	put(t, b, "aa", "2", time.Hour)
	put(t, b, "ab", "3", 0)
	put(t, b, "b", "4", time.Hour)
	image, err := b.Save(t.Context())
	require.NoError(t, err)
	fork := start(t, memory.Options{Clock: c, Image: image.Without("a/b/aa").Without("a/b/ab")})
	require.Equal(t, []string{"a=1@2", "b=4@5"}, content(t, fork))
	next := follow(t, fork)
	c.Step(time.Hour)
	require.Equal(t, []string{"b@6"}, next(1))
	whole := start(t, memory.Options{Clock: c, Image: image})
	require.Len(t, content(t, whole), 4)
}

// Without compaction by clients, memory does not grow forever.
func TestHistory_IsBounded(t *testing.T) {
	t.Parallel()
	b := start(t, memory.Options{})
	value := string(bytes.Repeat([]byte("x"), 1<<20))
	var largest int64
	for range 200 {
		put(t, b, "a", value, 0)
		status, err := b.Status(t.Context())
		require.NoError(t, err)
		largest = max(largest, status.Size)
	}
	require.Less(t, largest, int64(70<<20))
	_, err := b.Range(t.Context(), storage.RangeRequest{Revision: 100})
	require.ErrorIs(t, err, storage.ErrExpired)
	for batch := range b.Watch(t.Context(), storage.FollowRequest{From: 100}) {
		if batch.Err != nil {
			require.ErrorIs(t, batch.Err, storage.ErrExpired)
			return
		}
	}
	require.Fail(t, "the watch has not ended with an error")
}

func TestQuota_AcceptsOnlyDeletions(t *testing.T) {
	t.Parallel()
	b := start(t, memory.Options{QuotaBytes: 1 << 20})
	value := string(make([]byte, 100<<10))
	write := func(i int) error {
		_, err := b.Commit(t.Context(), []storage.Write{{Key: key(fmt.Sprint(i)), Value: []byte(value)}})
		return err
	}
	for i := range 11 {
		require.NoError(t, write(i))
	}
	require.ErrorIs(t, write(11), storage.ErrNoSpace)
	status, err := b.Status(t.Context())
	require.NoError(t, err)
	require.True(t, status.Has(storage.NoSpace))
	remove(t, b, "1")
	remove(t, b, "2")
	require.ErrorIs(t, write(11), storage.ErrNoSpace, "history counts")
	require.NoError(t, b.Compact(t.Context(), status.Revision+2))
	remove(t, b, "3")
	require.NoError(t, b.Compact(t.Context(), status.Revision+3))
	require.NoError(t, write(11))
}

func TestClose_EndsEverything(t *testing.T) {
	t.Parallel()
	b := memory.New(memory.Options{})
	put(t, b, "a", "", time.Hour)
	open := b.Watch(t.Context(), storage.FollowRequest{From: 1})
	require.NoError(t, b.Close())
	for range open {
	}
	_, late := <-b.Watch(t.Context(), storage.FollowRequest{From: 1})
	require.False(t, late)
	_, err := b.Revision(t.Context())
	require.ErrorIs(t, err, storage.ErrUnavailable)
	_, err = b.Commit(t.Context(), []storage.Write{{Key: key("b")}})
	require.ErrorIs(t, err, storage.ErrUnavailable)
	_, err = b.Save(t.Context())
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.NoError(t, b.Close())
}

func TestSnapshot_IsNotSupported(t *testing.T) {
	t.Parallel()
	err := storage.Snapshot(t.Context(), start(t, memory.Options{}), &bytes.Buffer{})
	require.True(t, errors.Is(err, errors.ErrUnsupported), "%v", err)
}

func BenchmarkCommit(b *testing.B) {
	m := start(b, memory.Options{})
	value := bytes.Repeat([]byte("x"), 1000)
	for i := 0; b.Loop(); i++ {
		_, err := m.Commit(context.Background(), []storage.Write{{Op: storage.Update, Key: key(fmt.Sprint(i % 10000)),
			Value: value, Expect: storage.AnyRevision}})
		require.NoError(b, err)
	}
}

// filled returns a backend with 1,000 documents of 1 KB.
func filled(b *testing.B) *memory.Backend {
	m := start(b, memory.Options{})
	for i := range 1000 {
		put(b, m, fmt.Sprint(i), string(bytes.Repeat([]byte("x"), 1000)), 0)
	}
	return m
}

func BenchmarkSave(b *testing.B) {
	m := filled(b)
	for b.Loop() {
		_, err := m.Save(context.Background())
		require.NoError(b, err)
	}
}

// BenchmarkRestore restores a state from which every second document differs.
func BenchmarkRestore(b *testing.B) {
	m := filled(b)
	image, err := m.Save(context.Background())
	require.NoError(b, err)
	for b.Loop() {
		b.StopTimer()
		for i := range 500 {
			put(b, m, fmt.Sprint(2*i), "changed", 0)
		}
		b.StartTimer()
		_, err := m.Restore(context.Background(), image)
		require.NoError(b, err)
	}
}

func BenchmarkNewOfImage(b *testing.B) {
	image, err := filled(b).Save(context.Background())
	require.NoError(b, err)
	for b.Loop() {
		require.NoError(b, memory.New(memory.Options{Image: image}).Close())
	}
}
