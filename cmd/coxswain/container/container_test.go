package container

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFind_NeedsAMarkAndTheFirstProcess(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	_, found := find(root, 1, "0123456789ab")
	require.False(t, found, "no mark")
	require.NoError(t, os.WriteFile(filepath.Join(root, ".dockerenv"), nil, 0o600))
	_, found = find(root, 7, "0123456789ab")
	require.False(t, found, "a process beside the main one")
	c, found := find(root, 1, "0123456789ab")
	require.True(t, found)
	require.Equal(t, Container{"docker", "0123456789ab"}, c)
	c, _ = find(root, 1, "apiserver")
	require.Equal(t, Container{"docker", "CONTAINER"}, c)

	podman := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(podman, "run"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(podman, "run", ".containerenv"), nil, 0o600))
	c, found = find(podman, 1, "0123456789ab")
	require.True(t, found)
	require.Equal(t, "podman", c.Command)
}
