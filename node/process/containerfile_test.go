package process

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContainerFile_IsReadFromItsEndAndOnlyIfItIsOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at("short"), []byte("short"), 0o600))
	text, err := readContainerFile(at("short"), 4096)
	require.NoError(t, err)
	require.Equal(t, "short", string(text))

	huge, err := os.Create(at("huge")) // a terabyte that takes no room
	require.NoError(t, err)
	require.NoError(t, huge.Truncate(1<<40))
	_, err = huge.WriteAt([]byte("the end"), 1<<40)
	require.NoError(t, err)
	require.NoError(t, huge.Close())
	text, err = readContainerFile(at("huge"), 4096)
	require.NoError(t, err)
	require.Len(t, text, 4096)
	require.True(t, strings.HasSuffix(string(text), "the end"))

	require.NoError(t, syscall.Mkfifo(at("fifo"), 0o600))
	require.NoError(t, os.Symlink(at("short"), at("link")))
	for _, name := range []string{"fifo", "link", "."} {
		_, err = readContainerFile(at(name), 4096)
		require.Error(t, err, name)
	}
}
