package main

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLockDir_MakesTheDataDirectoryPrivate(t *testing.T) {
	t.Parallel()
	mode := func(path string) os.FileMode {
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	fresh := filepath.Join(t.TempDir(), "a", "b")
	unlock, err := lockDir(fresh)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), mode(fresh))
	_, err = lockDir(fresh)
	require.ErrorContains(t, err, "in use by another coxswain")
	unlock()

	// Empty, or a data directory of ours with the modes of a careless copy.
	for _, files := range [][]string{nil, {"pki/ca.key", "pki/etcd/ca.key", "admin.kubeconfig"}} {
		dir := filepath.Join(t.TempDir(), "data")
		require.NoError(t, os.MkdirAll(filepath.Join(dir), 0o755))
		for _, name := range files {
			file := filepath.Join(dir, filepath.FromSlash(name))
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(t, os.WriteFile(file, nil, 0o644))
		}
		unlock, err := lockDir(dir)
		require.NoError(t, err)
		unlock()
		require.Equal(t, os.FileMode(0o700), mode(dir))
		for _, name := range files {
			require.Equal(t, os.FileMode(0o600), mode(filepath.Join(dir, filepath.FromSlash(name))), name)
		}
	}
}

func TestLockDir_TakesNoFolderThatIsAnothers(t *testing.T) {
	t.Parallel()
	shared := t.TempDir()
	require.NoError(t, os.Chmod(shared, 0o1777))
	require.NoError(t, os.WriteFile(filepath.Join(shared, "theirs"), nil, 0o644))
	_, err := lockDir(shared)
	require.ErrorContains(t, err, "is open to others (mode 0777) and holds other files")
	require.NoFileExists(t, filepath.Join(shared, "lock"))
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can give a folder to another user")
	}
	for _, theirs := range []string{"", "pki", "pki/ca.key"} {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, "pki"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "pki", "ca.key"), nil, 0o600))
		require.NoError(t, os.Chown(filepath.Join(dir, filepath.FromSlash(theirs)), 4711, -1))
		_, err := lockDir(dir)
		require.ErrorContains(t, err, "belongs to the user with the ID 4711", theirs)
	}
}

// TestUp_IsInterruptedWhileItWaits: another process, such as etcdctl, holds etcd's file. It is not
// parallel: a command sets the process's logger.
func TestUp_IsInterruptedWhileItWaits(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	database := filepath.Join(dir, "etcd", "member", "snap", "db")
	require.NoError(t, os.MkdirAll(filepath.Dir(database), 0o700))
	held, err := os.Create(database)
	require.NoError(t, err)
	defer held.Close()
	require.NoError(t, syscall.Flock(int(held.Fd()), syscall.LOCK_EX))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	cmd := newCommand()
	cmd.SetArgs([]string{"up", "--data-dir", dir, "--secure-port", "0"})
	require.ErrorContains(t, cmd.ExecuteContext(ctx), database+" is locked by another process")
}
