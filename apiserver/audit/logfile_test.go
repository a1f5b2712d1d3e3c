package audit

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func openTestLog(t testing.TB, o LogOptions) *logFile {
	t.Helper()
	out, err := openLog(o, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return out.(*logFile)
}

// contents returns the text of a log and its old files, from the oldest on.
func contents(t testing.TB, path string) string {
	t.Helper()
	list, err := backups(path)
	require.NoError(t, err)
	var all strings.Builder
	for i := len(list) - 1; i >= 0; i-- {
		text, err := os.ReadFile(list[i].path)
		require.NoError(t, err)
		if strings.HasSuffix(list[i].path, gzSuffix) {
			r, err := gzip.NewReader(bytes.NewReader(text))
			require.NoError(t, err)
			text, err = io.ReadAll(r)
			require.NoError(t, err)
		}
		all.Write(text)
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	all.Write(text)
	return all.String()
}

func TestLogFile_RotatesUnderLoadWithoutLosingALine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "made", "audit.log")
	l := openTestLog(t, LogOptions{Path: path, MaxSize: 1, Compress: true})
	const writers, lines = 2, 3000
	var running sync.WaitGroup
	for w := range writers {
		running.Go(func() {
			for i := range lines {
				line := fmt.Sprintf("%d %d %s\n", w, i, strings.Repeat("x", 1000))
				if err := l.write(t.Context(), []byte(line)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	require.NoError(t, l.close())
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	list, err := backups(path)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(list), 5)
	next := make([]int, writers)
	for line := range strings.Lines(contents(t, path)) {
		var w, i int
		_, err := fmt.Sscan(line, &w, &i)
		require.NoError(t, err, line)
		require.Equal(t, next[w], i)
		next[w]++
	}
	require.Equal(t, []int{lines, lines}, next)
}

func TestLogFile_LimitsNumberAndAgeOfOldFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	now := time.Now()
	for _, age := range []time.Duration{time.Hour, 2 * time.Hour, 3 * time.Hour, 100 * time.Hour} {
		require.NoError(t, os.WriteFile(backupName(path, now.Add(-age)), []byte("old\n"), 0o600))
	}
	other := filepath.Join(filepath.Dir(path), "audit-notes.log")
	require.NoError(t, os.WriteFile(other, nil, 0o600))
	tidied := func(o LogOptions) int {
		o.Path = path
		require.NoError(t, (&tidier{LogOptions: o, stop: make(chan struct{})}).tidy(now))
		list, err := backups(path)
		require.NoError(t, err)
		return len(list)
	}
	require.Equal(t, 4, tidied(LogOptions{}))
	require.Equal(t, 3, tidied(LogOptions{MaxAge: 4}))
	require.Equal(t, 2, tidied(LogOptions{MaxBackups: 2, Compress: true}))
	list, err := backups(path)
	require.NoError(t, err)
	require.Equal(t, now.Add(-time.Hour).UTC().Truncate(time.Millisecond), list[0].at)
	require.True(t, strings.HasSuffix(list[0].path, ".log.gz"))
	require.FileExists(t, other)
}

func TestLogFile_ReopensAfterExternalRotation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	l := openTestLog(t, LogOptions{Path: path})
	require.NoError(t, l.write(t.Context(), []byte("a\n")))
	require.NoError(t, os.Rename(path, path+".1"))
	l.mu.Lock()
	l.looked = l.looked.Add(-lookEvery)
	l.mu.Unlock()
	require.NoError(t, l.write(t.Context(), []byte("b\n")))
	require.NoError(t, l.close())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "b\n", string(text))
}

// An incomplete line, left by a killed server, does not corrupt the next one.
func TestLogFile_SeparatesAnIncompleteLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	require.NoError(t, os.WriteFile(path, []byte("a\n{\"torn"), 0o600))
	l := openTestLog(t, LogOptions{Path: path})
	require.NoError(t, l.write(t.Context(), []byte("b\n")))
	require.NoError(t, l.close())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "a\n{\"torn\nb\n", string(text))
}
