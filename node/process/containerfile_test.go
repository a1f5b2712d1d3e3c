package process

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadContainerFile_ReadsTheEndOfRegularFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(path("short"), []byte("short"), 0o600))
	text, err := readContainerFile(path("short"), 4096)
	require.NoError(t, err)
	require.Equal(t, "short", string(text))

	huge, err := os.Create(path("huge")) // a sparse file of a terabyte
	require.NoError(t, err)
	require.NoError(t, huge.Truncate(1<<40))
	_, err = huge.WriteAt([]byte("the end"), 1<<40)
	require.NoError(t, err)
	require.NoError(t, huge.Close())
	text, err = readContainerFile(path("huge"), 4096)
	require.NoError(t, err)
	require.Len(t, text, 4096)
	require.True(t, strings.HasSuffix(string(text), "the end"))

	require.NoError(t, syscall.Mkfifo(path("fifo"), 0o600))
	require.NoError(t, os.Symlink(path("short"), path("link")))
	for _, name := range []string{"fifo", "link", "."} {
		_, err = readContainerFile(path(name), 4096)
		require.Error(t, err, name)
	}
}
