package etcd

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/coxswain-dev/coxswain/storage"
)

func TestCommit_ObjectsWithATTLShareLeasesAndVanish(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, storage.Options{})
	pods := s.Collection(podsName, podOptions)
	w := watch(t, pods)
	const n = 5
	alive := map[string]*storage.Object{}
	for i := range n {
		key := podKey("default", fmt.Sprintf("p%d", i))
		result, err := s.Commit(ctx, storage.Write{Op: storage.Create, Key: key,
			Value: pod("default", "p", ""), TTL: time.Second})
		require.NoError(t, err)
		alive[key.Name] = result.Objects[0]
	}
	leases, err := b.(*backend).client.Leases(ctx)
	require.NoError(t, err)
	require.Less(t, len(leases.Leases), n)
	take(t, w, n)
	for _, e := range take(t, w, n) {
		require.Equal(t, storage.Deleted, e.Type)
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
	s := openStore(t, b, storage.Options{})
	put := func(name string) error {
		_, err := s.Commit(ctx, storage.Write{Op: storage.Create, Key: podKey("default", name),
			Value: pod("default", name, ""), TTL: time.Hour})
		return err
	}
	require.NoError(t, put("a"))
	client := b.(*backend).client
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
	s := openStore(t, b, storage.Options{})
	client := b.(*backend).client
	lease := func() clientv3.LeaseID {
		kvs, err := client.Get(ctx, b.(*backend).prefix+podKey("default", "a").String())
		require.NoError(t, err)
		require.Len(t, kvs.Kvs, 1)
		return clientv3.LeaseID(kvs.Kvs[0].Lease)
	}
	result, err := s.Commit(ctx, storage.Write{Op: storage.Create, Key: podKey("default", "a"),
		Value: pod("default", "a", ""), TTL: time.Hour})
	require.NoError(t, err)
	old := result.Objects[0]
	write := func(ttl time.Duration) clientv3.LeaseID {
		result, err := s.Commit(ctx, storage.Write{Op: storage.Update, Key: old.Key, Expect: old.Revision,
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

// Leases are never too short, only slightly too long, and few, regardless of the times to live that clients use.
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
func TestLease_RejectedWritesAreNotCounted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, storage.Options{})
	w := storage.Write{Op: storage.Create, Key: podKey("default", "a"),
		Value: pod("default", "a", ""), TTL: 10 * time.Hour}
	_, err := s.Commit(ctx, w)
	require.NoError(t, err)
	for range 10 {
		_, err = s.Commit(ctx, w)
		require.ErrorIs(t, err, storage.ErrExists)
	}
	for _, lease := range b.(*backend).leases.open {
		require.EqualValues(t, 1, lease.objects.Load())
	}
}

func TestCommit_AnUpdateMayKeepTheTimeToLive(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, storage.Options{})
	made, err := s.Commit(ctx, storage.Write{Op: storage.Create, Key: podKey("default", "a"),
		Value: pod("default", "a", ""), TTL: time.Hour})
	require.NoError(t, err)
	lease := func() int64 {
		got, err := b.(*backend).client.Get(ctx, b.(*backend).prefix+podKey("default", "a").String())
		require.NoError(t, err)
		return got.Kvs[0].Lease
	}
	before := lease()
	require.NotZero(t, before)
	updated, err := s.Commit(ctx, storage.Write{Op: storage.Update, Key: podKey("default", "a"),
		Value: pod("default", "a", "n1"), Expect: made.Revision, KeepTTL: true})
	require.NoError(t, err)
	require.Equal(t, before, lease())
	_, err = s.Commit(ctx, storage.Write{Op: storage.Update, Key: podKey("default", "a"),
		Value: pod("default", "a", "n2"), Expect: updated.Revision})
	require.NoError(t, err)
	require.Zero(t, lease())
}
