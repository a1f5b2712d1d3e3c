package etcd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/storage"
)

// diskWith gives the backend a disk with so many free bytes, which may be changed.
func diskWith(b storage.Backend, bytes uint64) *atomic.Uint64 {
	var free atomic.Uint64
	free.Store(bytes)
	b.(*backend).disk.free = func() (uint64, error) { return free.Load(), nil }
	b.(*backend).disk.roomUntil.Store(0)
	return &free
}

func TestCommit_AFullDiskAcceptsOnlyDeletions(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, storage.Options{})
	o := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	require.NoError(t, s.Ready(ctx))
	free := diskWith(b, 0)
	another := storage.Write{Op: storage.Create, Key: podKey("default", "b"), Value: []byte(`{}`)}
	_, err := s.Commit(ctx, another)
	require.ErrorIs(t, err, storage.ErrNoSpace)
	require.ErrorIs(t, s.Ready(ctx), storage.ErrNoSpace)
	remove(t, s, o)
	free.Store(1 << 40)
	_, err = s.Commit(ctx, another)
	require.NoError(t, err)
	require.NoError(t, s.Ready(ctx))
}

// Graceful deletion writes the object before it deletes it.
func TestCommit_AFullDiskAcceptsSomeDocumentsOfEndingObjects(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	s := openStore(t, b, storage.Options{})
	o := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	quota := create(t, s, podKey("default", "b"), pod("default", "b", ""))
	free := diskWith(b, 0)
	big := fmt.Appendf(nil, `{"metadata":{},"data":%q}`, strings.Repeat("x", endingReserve/4))
	mark := func() error {
		result, err := s.Commit(ctx, storage.Write{Op: storage.Update, Key: o.Key,
			Value: big, Expect: o.Revision, Ending: true})
		if err == nil {
			o = result.Objects[0]
		}
		return err
	}
	for range 2 {
		for range 3 {
			require.NoError(t, mark())
		}
		require.ErrorIs(t, mark(), storage.ErrNoSpace, "the log has a segment ahead, and no more")
		result, err := s.Commit(ctx,
			storage.Write{Op: storage.Update, Key: o.Key,
				Value: []byte(`{"metadata":{}}`), Expect: o.Revision, Ending: true},
			storage.Write{Op: storage.Update, Key: quota.Key, Value: []byte(`{"metadata":{}}`), Expect: quota.Revision})
		require.NoError(t, err, "a small one fits, and so does what is written with it")
		o, quota = result.Objects[0], result.Objects[1]
		_, err = s.Commit(ctx, storage.Write{Op: storage.Update, Key: quota.Key,
			Value: []byte(`{}`), Expect: quota.Revision})
		require.ErrorIs(t, err, storage.ErrNoSpace)
		free.Store(1 << 40)
		o = update(t, s, o, []byte(`{"metadata":{}}`))
		free.Store(0)
		b.(*backend).disk.roomUntil.Store(0)
	}
	remove(t, s, o)
}

// etcd exits when it cannot save a snapshot.
func TestDisk_FreesItsReserveWhenNoBlockIsFree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700))
	d := diskOf(dir)
	free := uint64(1 << 40)
	d.free = func() (uint64, error) { return free, nil }
	blocks := func() int64 {
		info, err := os.Stat(filepath.Join(dir, reserveFile))
		require.NoError(t, err)
		return info.Size()
	}
	deletion := []storage.Write{{Op: storage.Delete}}
	for range 2 {
		d.roomUntil.Store(0)
		require.NoError(t, d.admit(deletion))
		require.EqualValues(t, reserveSize, blocks())
		d.roomUntil.Store(0)
		free = diskReserve - 1
		require.NoError(t, d.admit(deletion))
		require.EqualValues(t, reserveSize, blocks(), "there is space left")
		free = 0
		require.NoError(t, d.admit(deletion))
		require.EqualValues(t, reserveSize-reservePiece, blocks())
		for range 100 {
			require.NoError(t, d.admit(deletion))
		}
		require.Zero(t, blocks())
		free = 1 << 40
	}
}

func TestUpkeep_ReturnsFreedSpaceToTheDisk(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := startBackend(t)
	fake := clocktesting.NewFakeClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	s := openStore(t, b, storage.Options{Clock: fake})
	big := fmt.Appendf(nil, `{"metadata":{},"data":%q}`, strings.Repeat("x", 1<<20))
	var objects []*storage.Object
	for i := range 30 {
		objects = append(objects, create(t, s, podKey("default", fmt.Sprint(i)), big))
	}
	for _, o := range objects {
		remove(t, s, o)
	}
	size := func() int64 {
		status, err := b.Status(ctx)
		require.NoError(t, err)
		return status.Size
	}
	require.Greater(t, size(), int64(diskReserve))
	free := diskWith(b, 0)
	another := storage.Write{Op: storage.Create, Key: podKey("default", "a"), Value: []byte(`{}`)}
	_, err := s.Commit(ctx, another)
	require.ErrorIs(t, err, storage.ErrNoSpace)
	require.ErrorIs(t, b.Defragment(ctx), storage.ErrNoSpace, "it takes a copy of the database")
	free.Store(diskReserve - 1)
	require.Eventually(t, func() bool {
		fake.Step(time.Minute) // at most so long passes between attempts to make room
		_, err := s.Commit(ctx, another)
		require.ErrorIs(t, err, storage.ErrNoSpace)
		return size() < 1<<20
	}, patience, 10*time.Millisecond)
}
