package storage

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCommit_FailsWithTheErrorsOfTheContract(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, pods := startPods(t, Options{})
	old := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	now := update(t, s, old, pod("default", "a", "n1"))
	document := pod("default", "a", "")

	_, err := s.Commit(ctx, Write{Op: Create, Key: now.Key, Value: document})
	require.ErrorIs(t, err, ErrExists)
	for _, w := range []Write{
		{Op: Update, Key: now.Key, Value: document, Expect: old.Revision},
		{Op: Delete, Key: now.Key, Expect: old.Revision},
	} {
		_, err = s.Commit(ctx, w)
		var conflict *Conflict
		require.ErrorAs(t, err, &conflict)
		require.Equal(t, now, conflict.Current)
		w.Key.Name = "missing"
		_, err = s.Commit(ctx, w)
		require.ErrorIs(t, err, ErrNotFound)
	}
	_, err = s.Commit(ctx,
		Write{Op: Create, Key: podKey("default", "new"), Value: document},
		Write{Op: Create, Key: now.Key, Value: document})
	require.ErrorIs(t, err, ErrExists)
	_, err = pods.Get(ctx, "default", "new", At{})
	require.ErrorIs(t, err, ErrNotFound, "all or nothing")

	for name, w := range map[string]Write{
		"corrupt": {Op: Create, Key: podKey("default", "b"), Value: []byte(`{`)},
		"has revision": {Op: Create, Key: podKey("default", "b"),
			Value: []byte(`{"metadata":{"resourceVersion":"1"}}`)},
		"no name":    {Op: Create, Key: podKey("default", ""), Value: document},
		"slash":      {Op: Create, Key: podKey("default", "a/b"), Value: document},
		"no compare": {Op: Delete, Key: now.Key},
		"create at":  {Op: Create, Key: podKey("default", "b"), Value: document, Expect: 5},
	} {
		_, err = s.Commit(ctx, w)
		require.Error(t, err, name)
		require.NotErrorIs(t, err, ErrUnknownOutcome, name)
	}
	_, err = s.Commit(ctx)
	require.Error(t, err)

	huge := fmt.Appendf(nil, `{"metadata":{},"data":%q}`, strings.Repeat("x", 2<<20))
	_, err = s.Commit(ctx, Write{Op: Create, Key: podKey("default", "huge"), Value: huge})
	require.ErrorIs(t, err, ErrTooLarge)

	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = s.Commit(ended, Write{Op: Create, Key: podKey("default", "late"), Value: document})
	require.ErrorIs(t, err, ErrUnavailable, "the request was not sent")
	require.ErrorIs(t, err, context.Canceled)
}

// An unconditional write is applied if and only if the write beside it is.
func TestCommit_WithAnyRevisionIsUnconditional(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, pods := startPods(t, Options{})
	first := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	beside := func(op Op, node string) Write {
		w := Write{Op: op, Key: podKey("default", "b"), Expect: AnyRevision}
		if op == Update {
			w.Value = pod("default", "b", node)
		}
		return w
	}
	a := Write{Op: Update, Key: first.Key, Expect: first.Revision, Value: pod("default", "a", "n1")}
	for _, w := range []Write{beside(Delete, ""), beside(Update, "n1"), beside(Update, "n2")} {
		result, err := s.Commit(ctx, a, w)
		require.NoError(t, err)
		require.Equal(t, w.Key, result.Objects[1].Key)
		a.Expect = result.Revision
	}
	a.Expect--
	for _, w := range []Write{beside(Delete, ""), beside(Update, "n3")} {
		_, err := s.Commit(ctx, w, a)
		var refused *Refusal
		require.ErrorAs(t, err, &refused)
		require.Equal(t, 1, refused.Write)
		b, err := pods.Get(ctx, "default", "b", At{})
		require.NoError(t, err)
		require.Contains(t, string(b.JSON), `"n2"`)
	}
	result, err := s.Commit(ctx, beside(Delete, ""))
	require.NoError(t, err)
	require.Contains(t, string(result.Objects[0].JSON), `"n2"`)
	_, err = pods.Get(ctx, "default", "b", At{})
	require.ErrorIs(t, err, ErrNotFound)
}

// BenchmarkCommitCreate also reports the processor time of one create until memory holds it, etcd's
// part included.
func BenchmarkCommitCreate(b *testing.B) {
	s, _ := startPods(b, Options{})
	var n atomic.Int64
	b.SetParallelism(8)
	b.ReportAllocs()
	before := processorTime(b)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			key := podKey("default", fmt.Sprintf("p%d", n.Add(1)))
			if _, err := s.Commit(b.Context(), Write{Op: Create, Key: key, Value: typicalPod}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	if _, err := s.Revision(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// A commit with a Check is rejected if the checked object has another revision.
func TestCommit_ChecksAnObjectThatItDoesNotChange(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, pods := startPods(t, Options{})
	base := create(t, s, podKey("default", "base"), pod("default", "base", ""))
	on := func(name string, base Key, revision int64) error {
		_, err := s.Commit(ctx, Write{Op: Create, Key: podKey("default", name), Value: pod("default", name, "")},
			Write{Op: Check, Key: base, Expect: revision})
		return err
	}
	require.NoError(t, on("a", base.Key, base.Revision))
	same, err := pods.Get(ctx, "default", "base", At{})
	require.NoError(t, err)
	require.Equal(t, base.Revision, same.Revision, "it does not change")

	changed, err := s.Commit(ctx, Write{Op: Update, Key: base.Key, Value: pod("default", "base", "n"),
		Expect: base.Revision})
	require.NoError(t, err)
	var refused *Refusal
	require.ErrorAs(t, on("b", base.Key, base.Revision), &refused)
	require.Equal(t, 1, refused.Write)
	var conflict *Conflict
	require.ErrorAs(t, refused, &conflict)
	require.Equal(t, changed.Revision, conflict.Current.Revision)
	require.NoError(t, on("b", base.Key, changed.Revision))

	err = on("c", podKey("default", "missing"), base.Revision)
	require.ErrorAs(t, err, &refused)
	require.ErrorIs(t, err, ErrNotFound)
	for _, revision := range []int64{0, AnyRevision} {
		require.ErrorContains(t, on("d", base.Key, revision), "no write can expect revision")
	}
}

func TestCommit_WaitsForMemoryInASynchronousStore(t *testing.T) {
	t.Parallel()
	b := newLossyBackend(startBackend(t))
	s := openStore(t, b, Options{Synchronous: true})
	pods := s.Collection(podsName, podOptions)
	for i := range 100 {
		made := create(t, s, podKey("default", fmt.Sprintf("p%d", i)), pod("default", fmt.Sprintf("p%d", i), ""))
		got, err := pods.Get(testContext(t), "default", made.Key.Name, At{Any: true})
		require.NoError(t, err)
		require.Equal(t, made.Revision, got.Revision)
	}
	repair := b.cut()
	create(t, s, podKey("default", "late"), pod("default", "late", "")) // a broken watch does not stop writers
	repair()
}
