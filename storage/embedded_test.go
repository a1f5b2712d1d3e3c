package storage

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEmbedded_FindsEverythingAfterARestart(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	// Longer than a unix socket's path may be, and not private yet.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	require.NoError(t, os.Mkdir(dir, 0o755))
	b, err := StartEmbedded(ctx, EmbeddedOptions{Dir: dir})
	require.NoError(t, err)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	s, err := Open(ctx, b, Options{})
	require.NoError(t, err)
	o := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	require.NoError(t, s.Close())
	require.NoError(t, b.Close())
	require.NoError(t, b.Close(), "closing twice")

	b, err = StartEmbedded(ctx, EmbeddedOptions{Dir: dir})
	require.NoError(t, err)
	defer b.Close()
	s = openStore(t, b, Options{})
	got, err := s.Collection(podsName, CollectionOptions{}).Get(ctx, "default", "a", At{})
	require.NoError(t, err)
	require.Equal(t, string(o.JSON), string(got.JSON))
	require.NoError(t, s.Close())
}

func TestEmbedded_SaysWhyItDoesNotStart(t *testing.T) {
	t.Parallel()
	_, err := StartEmbedded(testContext(t), EmbeddedOptions{})
	require.ErrorContains(t, err, "data directory")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = StartEmbedded(testContext(t), EmbeddedOptions{Dir: file})
	require.ErrorContains(t, err, "data directory")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = StartEmbedded(ctx, EmbeddedOptions{Dir: t.TempDir(), Unsafe: true})
	require.ErrorIs(t, err, context.Canceled)
}

func BenchmarkStartEmbedded(b *testing.B) {
	for b.Loop() {
		backend, err := StartEmbedded(b.Context(), EmbeddedOptions{Dir: b.TempDir()})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := backend.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
