package process

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLastLines_AreBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "0.log")
	log := func(records ...string) string {
		t.Helper()
		var b strings.Builder
		for _, r := range records {
			fmt.Fprintf(&b, "2026-01-02T03:04:05.000000006Z stdout %s\n", r)
		}
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
		return lastLines(path)
	}
	require.Equal(t, "one\ntwo\n", log("F one", "F two"))
	require.Equal(t, "begun, ended\nlast\n", log("P begun, ", "F ended", "F last"))
	var many []string
	for i := range 100_000 {
		many = append(many, fmt.Sprint("F ", i))
	}
	lines := strings.SplitAfter(log(many...), "\n")
	require.Len(t, lines, maxMessageLines+1)
	require.Equal(t, "99999\n", lines[maxMessageLines-1])
	long := strings.Repeat("x", 16<<10)
	require.Equal(t, strings.Repeat("x", maxLogMessage-1)+"\n", log("P "+long, "P "+long, "F "+long))
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("no end", 1<<20)), 0o600))
	require.Empty(t, lastLines(path))
}

func TestFolderUse_StopsAtTheLimit(t *testing.T) {
	t.Parallel()
	top, elsewhere := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "large"), make([]byte, 1<<20), 0o600))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(top, "link")))
	deep := top
	for range 50 {
		deep = filepath.Join(deep, "d")
	}
	require.NoError(t, os.MkdirAll(deep, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(deep, "file"), make([]byte, 64<<10), 0o600))
	bytes, inodes := folderUse(top, 1000)
	require.EqualValues(t, 1+1+50+1, inodes)
	require.GreaterOrEqual(t, bytes, int64(64<<10))
	require.Less(t, bytes, int64(1<<20), "a symbolic link is not followed")
	for i := range 600 {
		require.NoError(t, os.WriteFile(filepath.Join(top, fmt.Sprint(i)), nil, 0o600))
	}
	_, inodes = folderUse(top, 100)
	require.Less(t, inodes, int64(100+256))
}
