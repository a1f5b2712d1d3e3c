package etcd

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/storage"
)

// resident returns how much of a mapped file is in the process's memory, in KiB.
func resident(t *testing.T, path string) (kib int) {
	smaps, err := os.Open("/proc/self/smaps")
	require.NoError(t, err)
	defer smaps.Close()
	ours := false
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		var from, to uint64
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x", &from, &to); err == nil { // a mapping begins
			ours = strings.HasSuffix(lines.Text(), path)
		}
		var n int
		if _, err := fmt.Sscanf(lines.Text(), "Rss: %d kB", &n); ours && err == nil {
			kib += n
		}
	}
	return kib
}

func TestEmbedded_DatabaseDoesNotStayInMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b, err := StartEmbedded(testContext(t), EmbeddedOptions{Dir: dir})
	require.NoError(t, err)
	defer b.Close()
	s, err := storage.Open(testContext(t), b, storage.Options{})
	require.NoError(t, err)
	defer s.Close()
	document := fmt.Appendf(nil, `{"metadata":{},"data":%q}`, strings.Repeat("x", 16<<10))
	o := create(t, s, podKey("default", "p"), document)
	for range 100 {
		o = update(t, s, o, document)
	}
	file := filepath.Join(dir, "member/snap/db")
	_, err = b.Range(testContext(t), storage.RangeRequest{Prefix: "core/pods/", Limit: 1})
	require.NoError(t, err)
	before := resident(t, file)
	require.NotZero(t, before)

	require.NoError(t, b.Compact(testContext(t), o.Revision-1))
	require.Less(t, resident(t, file), before)

	page, err := b.Range(testContext(t), storage.RangeRequest{Prefix: "core/pods/", Limit: 1})
	require.NoError(t, err)
	require.Equal(t, string(document), string(page.KVs[0].Value))
}
