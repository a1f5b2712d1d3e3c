package reload_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/reload"
)

func TestFiles_FollowTheirChangesAndKeepWhatWasGood(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	write := func(content string) {
		require.NoError(t, os.WriteFile(path+".new", []byte(content), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	parsed := make(chan string, 100)
	parse := func(contents [][]byte) (string, error) {
		content := string(contents[0])
		parsed <- content
		if content == "bad" {
			return "", errors.New("bad")
		}
		return content, nil
	}
	_, err := reload.Open(slog.New(slog.DiscardHandler), parse, path)
	require.Error(t, err, "it must be there at first")
	write("one")
	files, err := reload.Open(slog.New(slog.DiscardHandler), parse, path)
	require.NoError(t, err)
	require.Equal(t, "one", files.Current())
	require.Equal(t, "one", <-parsed)
	for _, content := range []string{"bad", "two"} {
		write(content)
		require.Eventually(t, func() bool {
			if files.Current(); len(parsed) == 0 {
				return false
			}
			return <-parsed == content
		}, 30*time.Second, 5*time.Millisecond)
		if content == "bad" {
			require.Equal(t, "one", files.Current())
		}
	}
	require.Equal(t, "two", files.Current())
	require.NoError(t, os.Remove(path))
	require.Equal(t, "two", files.Current())
}

func TestFiles_MayBeNone(t *testing.T) {
	t.Parallel()
	files, err := reload.Open(slog.New(slog.DiscardHandler), func([][]byte) (string, error) {
		return "made of nothing", nil
	})
	require.NoError(t, err)
	require.Equal(t, "made of nothing", files.Current())
}
