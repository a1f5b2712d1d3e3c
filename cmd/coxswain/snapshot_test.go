package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/etcd"
)

func etcdCommand(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := newEtcd()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

func TestEtcdSnapshot_SavesFromRunningAndStoppedServers(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	f := &serverFlags{dataDir: dir}
	unlock, err := datadir.Lock(dir)
	require.NoError(t, err)
	backend, err := f.openEtcd(ctx)
	require.NoError(t, err)
	store, err := storage.Open(ctx, backend, f.storeOptions())
	require.NoError(t, err)
	result, err := store.Commit(ctx, storage.Write{
		Op: storage.Create, Key: storage.Key{Collection: "core/configmaps", Namespace: "default", Name: "a"},
		Value: []byte(`{"metadata":{}}`),
	})
	require.NoError(t, err)
	stop, err := serveSnapshots(ctx, dir, store)
	require.NoError(t, err)

	live := filepath.Join(t.TempDir(), "live.db")
	out, err := etcdCommand(t, "snapshot", "save", live, "--data-dir", dir)
	require.NoError(t, err, out)
	info, err := os.Stat(live)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "it contains Secrets")
	out, err = etcdCommand(t, "snapshot", "restore", live, "--data-dir", dir)
	require.ErrorContains(t, err, "in use", out)

	stop()
	require.NoError(t, store.Close())
	require.NoError(t, backend.Close())
	unlock()
	stopped := filepath.Join(t.TempDir(), "stopped.db")
	out, err = etcdCommand(t, "snapshot", "save", stopped, "--data-dir", dir)
	require.NoError(t, err, out)
	for _, file := range []string{live, stopped} {
		out, err := etcdCommand(t, "snapshot", "status", file)
		require.NoError(t, err)
		require.Contains(t, out, "is intact")
		status, err := etcd.ReadSnapshot(file)
		require.NoError(t, err)
		require.Equal(t, result.Revision, status.Revision)
	}

	again := t.TempDir()
	out, err = etcdCommand(t, "snapshot", "restore", live, "--data-dir", again)
	require.NoError(t, err, out)
	restored, err := (&serverFlags{dataDir: again}).openEtcd(ctx)
	require.NoError(t, err)
	all, err := restored.Range(ctx, storage.RangeRequest{})
	require.NoError(t, err)
	require.Len(t, all.KVs, 1)
	require.NoError(t, restored.Close())
	out, err = etcdCommand(t, "snapshot", "restore", live, "--data-dir", again)
	require.ErrorContains(t, err, "not empty", out)

	member := filepath.Join(t.TempDir(), "member")
	out, err = etcdCommand(t, "snapshot", "restore", live, "--etcd-data-dir", member)
	require.NoError(t, err, out)
	require.DirExists(t, filepath.Join(member, "member", "snap"))

	_, err = etcdCommand(t, "snapshot", "save", filepath.Join(t.TempDir(), "x.db"), "--data-dir", t.TempDir())
	require.ErrorContains(t, err, "no etcd is embedded there")
	left, err := filepath.Glob(filepath.Join(filepath.Dir(live), "*"))
	require.NoError(t, err)
	require.Equal(t, []string{live}, left)
}

func TestEtcdSnapshot_ReplacesOnlyRegularFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	regular, link, folder := filepath.Join(dir, "regular"), filepath.Join(dir, "link"), filepath.Join(dir, "folder")
	require.NoError(t, os.WriteFile(regular, nil, 0o600))
	require.NoError(t, os.Symlink(regular, link))
	require.NoError(t, os.Mkdir(folder, 0o700))
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, file := range []string{link, folder, pipe, os.DevNull} {
		_, err := etcdCommand(t, "snapshot", "save", file, "--data-dir", t.TempDir())
		require.ErrorContains(t, err, "not a regular file", file)
		// The file can also appear while the snapshot is taken.
		_, err = saveSnapshot(filepath.Join(dir, "new"), func(io.Writer) error {
			return os.Symlink(file, filepath.Join(dir, "new"))
		})
		require.Error(t, err)
		require.NoError(t, os.Remove(filepath.Join(dir, "new")))
	}
	require.NoError(t, replaceable(regular))
	require.NoError(t, replaceable(filepath.Join(dir, "none")))
}

func TestEtcdSnapshot_DoesNotWaitForStalledClients(t *testing.T) {
	t.Parallel()
	server, client := net.Pipe()
	defer client.Close()
	_, err := patient{server, time.Millisecond}.Write([]byte("x"))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}
