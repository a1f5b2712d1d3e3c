package datadir_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/cmd/coxswain/datadir"
)

func TestLock_MakesTheDataDirectoryPrivate(t *testing.T) {
	t.Parallel()
	mode := func(path string) os.FileMode {
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	fresh := filepath.Join(t.TempDir(), "a", "b")
	unlock, err := datadir.Lock(fresh)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), mode(fresh))
	_, err = datadir.Lock(fresh)
	require.ErrorContains(t, err, "in use by another coxswain")
	unlock()

	// An empty folder, and a data directory that was copied with wrong modes.
	for _, files := range [][]string{nil, {"pki/ca.key", "pki/etcd/ca.key", "admin.kubeconfig"}} {
		dir := filepath.Join(t.TempDir(), "data")
		require.NoError(t, os.MkdirAll(filepath.Join(dir), 0o755))
		for _, name := range files {
			file := filepath.Join(dir, filepath.FromSlash(name))
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(t, os.WriteFile(file, nil, 0o644))
		}
		unlock, err := datadir.Lock(dir)
		require.NoError(t, err)
		unlock()
		require.Equal(t, os.FileMode(0o700), mode(dir))
		for _, name := range files {
			require.Equal(t, os.FileMode(0o600), mode(filepath.Join(dir, filepath.FromSlash(name))), name)
		}
	}
}

func TestLock_RejectsFoldersOfOtherUsers(t *testing.T) {
	t.Parallel()
	shared := t.TempDir()
	require.NoError(t, os.Chmod(shared, 0o1777))
	require.NoError(t, os.WriteFile(filepath.Join(shared, "theirs"), nil, 0o644))
	_, err := datadir.Lock(shared)
	require.ErrorContains(t, err, "is open to others (mode 0777) and holds other files")
	require.NoFileExists(t, filepath.Join(shared, "lock"))
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root can give a folder to another user")
	}
	for _, name := range []string{"", "pki", "pki/ca.key"} {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, "pki"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "pki", "ca.key"), nil, 0o600))
		require.NoError(t, os.Chown(filepath.Join(dir, filepath.FromSlash(name)), 4711, -1))
		_, err := datadir.Lock(dir)
		require.ErrorContains(t, err, "belongs to the user with the ID 4711", name)
	}
}
