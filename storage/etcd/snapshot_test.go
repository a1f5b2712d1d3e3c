package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/storage"
)

func snapshotFile(t *testing.T, s *storage.Store) string {
	t.Helper()
	var content bytes.Buffer
	require.NoError(t, s.Snapshot(testContext(t), &content))
	file := filepath.Join(t.TempDir(), "snapshot.db")
	require.NoError(t, os.WriteFile(file, content.Bytes(), 0o600))
	return file
}

func TestSnapshot_IsRestoredIntoANewCluster(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	s, pods := startPods(t)
	existing := create(t, s, podKey("default", "kept"), pod("default", "kept", "n1"))
	deleted := create(t, s, podKey("default", "gone"), pod("default", "gone", "n1"))
	remove(t, s, deleted)
	file := snapshotFile(t, s)
	later := create(t, s, podKey("default", "later"), pod("default", "later", "n1"))
	status, err := ReadSnapshot(file)
	require.NoError(t, err)
	require.Equal(t, later.Revision-1, status.Revision)
	require.Equal(t, 3, status.Keys)

	dir := filepath.Join(t.TempDir(), "etcd")
	require.NoError(t, RestoreSnapshot(file, dir))
	b, err := StartEmbedded(ctx, EmbeddedOptions{Dir: dir, Unsafe: true})
	require.NoError(t, err)
	restored, err := storage.Open(ctx, b, storage.Options{})
	require.NoError(t, err)
	again := restored.Collection(podsName, podOptions)
	list, err := again.List(ctx, storage.ListRequest{})
	require.NoError(t, err)
	require.Equal(t, []*storage.Object{existing}, list.Items)
	require.Greater(t, list.Revision, later.Revision, "revisions that clients remember are not given again")
	_, err = again.Watch(ctx, storage.WatchRequest{From: later.Revision})
	require.ErrorIs(t, err, storage.ErrExpired)
	_, err = pods.Get(ctx, "default", "later", storage.At{})
	require.NoError(t, err, "the etcd that the snapshot is of goes on")

	// The new cluster is one like any other: it is written, and found again after a restart.
	written := update(t, restored, existing, pod("default", "kept", "n2"))
	require.NoError(t, restored.Close())
	require.NoError(t, b.Close())
	b, err = StartEmbedded(ctx, EmbeddedOptions{Dir: dir, Unsafe: true})
	require.NoError(t, err)
	defer b.Close()
	restored = openStore(t, b, storage.Options{})
	got, err := restored.Collection(podsName, podOptions).Get(ctx, "default", "kept", storage.At{})
	require.NoError(t, err)
	require.Equal(t, written, got)
	require.NoError(t, restored.Close())
}

func TestSnapshot_OfAnExternalEtcd(t *testing.T) {
	t.Parallel()
	s := openStore(t, startEtcd(t).dial(), storage.Options{})
	o := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	status, err := ReadSnapshot(snapshotFile(t, s))
	require.NoError(t, err)
	require.Equal(t, o.Revision, status.Revision)
}

func TestSnapshot_OnlyIntactOnesAreRestored(t *testing.T) {
	t.Parallel()
	s, _ := startPods(t)
	create(t, s, podKey("default", "a"), pod("default", "a", ""))
	file := snapshotFile(t, s)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	flipped := bytes.Clone(content)
	flipped[len(flipped)/2] ^= 1
	for name, broken := range map[string][]byte{
		"empty": {}, "short": content[:len(content)/2], "no checksum": content[:len(content)-32], "flipped": flipped,
		"something else": bytes.Repeat([]byte("x"), 4096+32),
	} {
		file := filepath.Join(t.TempDir(), "broken.db")
		require.NoError(t, os.WriteFile(file, broken, 0o600))
		_, err := ReadSnapshot(file)
		require.ErrorIs(t, err, ErrBadSnapshot, name)
		dir := filepath.Join(t.TempDir(), "etcd")
		require.ErrorIs(t, RestoreSnapshot(file, dir), ErrBadSnapshot, name)
		require.NoDirExists(t, dir)
	}
	require.ErrorIs(t, RestoreSnapshot(file+".none", t.TempDir()), os.ErrNotExist)
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "x"), nil, 0o600))
	require.ErrorContains(t, RestoreSnapshot(file, full), "not empty")
	require.ErrorContains(t, s.Snapshot(testContext(t), brokenWriter{}), "no room")
}

func TestSnapshot_ClosedEarlyLeavesNoTransactionOpen(t *testing.T) {
	t.Parallel()
	b, err := StartEmbedded(testContext(t), EmbeddedOptions{Dir: t.TempDir(), Unsafe: true})
	require.NoError(t, err)
	s, err := storage.Open(testContext(t), b, storage.Options{})
	require.NoError(t, err)
	large := bytes.Repeat([]byte("x"), 1<<20) // more than is under way between etcd and its client
	create(t, s, podKey("default", "a"), fmt.Appendf(nil, `{"metadata":{},"data":%q}`, large))
	stream, err := b.Snapshot(context.Background())
	require.NoError(t, err)
	_, err = stream.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, stream.Close())
	require.ErrorContains(t, s.Snapshot(context.Background(), brokenWriter{}), "no room")
	require.NoError(t, s.Close())
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }() // which waits for every transaction
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-testContext(t).Done():
		t.Fatal("a transaction is open")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no room") }
