package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A caller may reuse a value's bytes as soon as Commit has returned, even if only because its context
// ended.
func TestCommit_KeepsNoValue(t *testing.T) {
	t.Parallel()
	for name, backend := range map[string]func() Backend{
		"embedded": func() Backend { return startBackend(t) },
		"external": func() Backend { return startEtcd(t).dial() },
	} {
		b := backend()
		s := openStore(t, b, Options{})
		pods := s.Collection(podsName, podOptions)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var wanted, buffer []byte
			for i := range 100 {
				wanted = pod("default", fmt.Sprintf("p%d", i), "")
				buffer = append(buffer[:0], wanted...)
				ctx, cancel := context.WithTimeout(testContext(t), time.Duration(i%10)*100*time.Microsecond+
					time.Minute*time.Duration(i%2))
				result, err := s.Commit(ctx, Write{Op: Create, Key: podKey("default", fmt.Sprintf("p%d", i)),
					Value: buffer})
				cancel()
				for j := range buffer {
					buffer[j] = 'x'
				}
				if err == nil {
					require.True(t, result.Objects[0].Same(wanted))
				}
			}
			list, err := pods.List(testContext(t), ListRequest{})
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(list.Items), 50)
			for _, objects := range []*Collection{pods, openStore(t, b, Options{}).Collection(podsName, podOptions)} {
				list, err := objects.List(testContext(t), ListRequest{})
				require.NoError(t, err)
				for _, o := range list.Items {
					require.True(t, o.Same(pod("default", o.Key.Name, "")), "%s", o.JSON)
				}
			}
		})
	}
}

func TestCommit_FailsAsTheContractSays(t *testing.T) {
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

	for what, w := range map[string]Write{
		"corrupt": {Op: Create, Key: podKey("default", "b"), Value: []byte(`{`)},
		"has revision": {Op: Create, Key: podKey("default", "b"),
			Value: []byte(`{"metadata":{"resourceVersion":"1"}}`)},
		"no name":    {Op: Create, Key: podKey("default", ""), Value: document},
		"slash":      {Op: Create, Key: podKey("default", "a/b"), Value: document},
		"no compare": {Op: Delete, Key: now.Key},
		"create at":  {Op: Create, Key: podKey("default", "b"), Value: document, Expect: 5},
	} {
		_, err = s.Commit(ctx, w)
		require.Error(t, err, what)
		require.NotErrorIs(t, err, ErrUnknownOutcome, what)
	}
	_, err = s.Commit(ctx)
	require.Error(t, err)

	huge := fmt.Appendf(nil, `{"metadata":{},"data":%q}`, strings.Repeat("x", 2<<20))
	_, err = s.Commit(ctx, Write{Op: Create, Key: podKey("default", "huge"), Value: huge})
	require.ErrorIs(t, err, ErrTooLarge)

	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = s.Commit(ended, Write{Op: Create, Key: podKey("default", "late"), Value: document})
	require.ErrorIs(t, err, ErrUnavailable, "nothing was sent")
	require.ErrorIs(t, err, context.Canceled)
}

func TestCommit_ErrorsSayWhetherItHappened(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ err, want error }{
		{rpctypes.ErrNoSpace, ErrNoSpace},
		{rpctypes.ErrRequestTooLarge, ErrTooLarge},
		{rpctypes.ErrTooManyOps, ErrTooLarge},
		{rpctypes.ErrNoLeader, ErrUnavailable},
		{rpctypes.ErrTooManyRequests, ErrUnavailable},
		{rpctypes.ErrTimeout, ErrUnknownOutcome},
		{rpctypes.ErrTimeoutDueToLeaderFail, ErrUnknownOutcome},
		{rpctypes.ErrLeaderChanged, ErrUnknownOutcome},
		{rpctypes.ErrStopped, ErrUnknownOutcome},
		{context.DeadlineExceeded, ErrUnknownOutcome},
		{context.Canceled, ErrUnknownOutcome},
		{notSent{context.Canceled}, ErrUnavailable},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), ErrUnknownOutcome},
		{status.Error(codes.Unavailable,
			`connection error: desc = "transport: Error while dialing: dial tcp: refused"`), ErrUnavailable},
		{status.Error(codes.ResourceExhausted, "trying to send message larger than max (3 vs. 2)"), ErrTooLarge},
	} {
		require.ErrorIs(t, writeError(c.err), c.want, "%v", c.err)
	}
	denied := writeError(rpctypes.ErrPermissionDenied)
	require.ErrorIs(t, denied, rpctypes.ErrPermissionDenied)
	require.NotErrorIs(t, denied, ErrUnknownOutcome)
	require.ErrorIs(t, readError(rpctypes.ErrCompacted), ErrExpired)
	require.ErrorIs(t, readError(rpctypes.ErrFutureRev), ErrFuture)
	require.ErrorIs(t, readError(errors.New("lost")), ErrUnavailable)
}

func TestCommit_ObjectsWithATTLShareLeasesAndVanish(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, Options{})
	pods := s.Collection(podsName, podOptions)
	w := watch(t, pods, WatchRequest{})
	const n = 5
	alive := map[string]*Object{}
	for i := range n {
		key := podKey("default", fmt.Sprintf("p%d", i))
		result, err := s.Commit(ctx, Write{Op: Create, Key: key, Value: pod("default", "p", ""), TTL: time.Second})
		require.NoError(t, err)
		alive[key.Name] = result.Objects[0]
	}
	leases, err := b.(*etcd).client.Leases(ctx)
	require.NoError(t, err)
	require.Less(t, len(leases.Leases), n)
	take(t, w, n)
	for _, e := range take(t, w, n) {
		require.Equal(t, Deleted, e.Type)
		last := alive[e.Object.Key.Name]
		delete(alive, e.Object.Key.Name)
		require.Greater(t, e.Revision, last.Revision)
		require.Equal(t, e.Revision, e.Object.Revision)
		require.Contains(t, string(e.Object.JSON), fmt.Sprintf(`"resourceVersion":"%d"`, e.Revision))
		require.Equal(t, last.UID, e.Object.UID)
	}
	require.Empty(t, alive)
}

func TestCommit_ALeaseThatWasRevokedIsReplaced(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, Options{})
	put := func(name string) error {
		_, err := s.Commit(ctx, Write{Op: Create, Key: podKey("default", name), Value: pod("default", name, ""),
			TTL: time.Hour})
		return err
	}
	require.NoError(t, put("a"))
	client := b.(*etcd).client
	leases, err := client.Leases(ctx)
	require.NoError(t, err)
	_, err = client.Revoke(ctx, leases.Leases[0].ID)
	require.NoError(t, err)
	require.NoError(t, put("b"))
}

// A write with another time to live moves the object to another lease, one without takes it
// off.
func TestCommit_ALaterWriteRenewsOrEndsTheLease(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, Options{})
	client := b.(*etcd).client
	lease := func() clientv3.LeaseID {
		kvs, err := client.Get(ctx, b.(*etcd).prefix+podKey("default", "a").String())
		require.NoError(t, err)
		require.Len(t, kvs.Kvs, 1)
		return clientv3.LeaseID(kvs.Kvs[0].Lease)
	}
	result, err := s.Commit(ctx, Write{Op: Create, Key: podKey("default", "a"), Value: pod("default", "a", ""),
		TTL: time.Hour})
	require.NoError(t, err)
	old := result.Objects[0]
	write := func(ttl time.Duration) clientv3.LeaseID {
		result, err := s.Commit(ctx, Write{Op: Update, Key: old.Key, Expect: old.Revision,
			Value: pod("default", "a", ""), TTL: ttl})
		require.NoError(t, err)
		old = result.Objects[0]
		return lease()
	}
	first := lease()
	require.NotZero(t, first)
	longer := write(2 * time.Hour)
	require.NotEqual(t, first, longer)
	_, err = client.Revoke(ctx, first)
	require.NoError(t, err)
	require.Equal(t, longer, lease(), "the end of the old lease is nothing to it")
	require.Zero(t, write(0))
	_, err = client.Revoke(ctx, longer)
	require.NoError(t, err)
	require.Zero(t, lease())
}

// A document of any revision shares the fate of the one that it is committed with.
func TestCommit_OfAnyRevisionComparesNothing(t *testing.T) {
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

// Leases are never too short, hardly too long, and few, whatever times to live clients use.
func TestLease_TermsAreFewAndNeverTooShort(t *testing.T) {
	t.Parallel()
	const longest = 100 * 365 * 24 * time.Hour
	terms := map[time.Duration]bool{}
	for ttl := time.Second; ttl < longest; ttl += ttl/1000 + 7*time.Millisecond {
		term, grain := leaseTerm(ttl)
		require.GreaterOrEqual(t, term, ttl)
		require.Less(t, term-ttl, max(time.Second, ttl/leaseGrains+1))
		require.Zero(t, term%time.Second)
		require.Zero(t, term%grain)
		terms[term] = true
	}
	require.Less(t, len(terms), 2700)
	for _, exact := range []time.Duration{time.Second, 45 * time.Second, 200 * time.Second} {
		term, _ := leaseTerm(exact)
		require.Equal(t, exact, term)
	}
}

// A write that etcd rejected takes no place in its lease; otherwise rejections would open one lease
// after another.
func TestLease_RefusedWritesAreNotCounted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, Options{})
	w := Write{Op: Create, Key: podKey("default", "a"), Value: pod("default", "a", ""), TTL: 10 * time.Hour}
	_, err := s.Commit(ctx, w)
	require.NoError(t, err)
	for range 10 {
		_, err = s.Commit(ctx, w)
		require.ErrorIs(t, err, ErrExists)
	}
	for _, lease := range b.(*etcd).leases.open {
		require.EqualValues(t, 1, lease.objects.Load())
	}
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

// A commit that depends on an object which it leaves alone is refused when that object is another one.
func TestCommit_ChecksAnObjectThatItLeavesAlone(t *testing.T) {
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
	require.Equal(t, base.Revision, same.Revision, "it is left alone")

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

	err = on("c", podKey("default", "nobody"), base.Revision)
	require.ErrorAs(t, err, &refused)
	require.ErrorIs(t, err, ErrNotFound)
	for _, revision := range []int64{0, AnyRevision} {
		require.ErrorContains(t, on("d", base.Key, revision), "no write can expect revision")
	}
}

func TestCommit_OfASynchronousStoreIsInMemoryWhenItReturns(t *testing.T) {
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
	mend := b.cut()
	create(t, s, podKey("default", "late"), pod("default", "late", "")) // a broken watch does not stop writers
	mend()
}
