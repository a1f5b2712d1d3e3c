package etcd

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/storage"
)

func TestEmbedded_KeepsEverythingAcrossARestart(t *testing.T) {
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
	s, err := storage.Open(ctx, b, storage.Options{})
	require.NoError(t, err)
	o := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	require.NoError(t, s.Close())
	require.NoError(t, b.Close())
	require.NoError(t, b.Close(), "closing twice")

	b, err = StartEmbedded(ctx, EmbeddedOptions{Dir: dir})
	require.NoError(t, err)
	defer b.Close()
	s = openStore(t, b, storage.Options{})
	got, err := s.Collection(podsName, storage.CollectionOptions{}).Get(ctx, "default", "a", storage.At{})
	require.NoError(t, err)
	require.Equal(t, string(o.JSON), string(got.JSON))
	require.NoError(t, s.Close())
}

func TestEmbedded_ReportsWhyItDoesNotStart(t *testing.T) {
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

func TestEmbedded_WritesOnlyPrivateFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "etcd")
	snapshots := filepath.Join(dir, "member", "snap")
	old := filepath.Join(snapshots, "0000000000000001-0000000000000001.snap")
	for range 2 {
		b, err := StartEmbedded(testContext(t), EmbeddedOptions{Dir: dir, Unsafe: true})
		require.NoError(t, err)
		s := openStore(t, b, storage.Options{})
		for range 2 * embeddedSnapshotCount / 100 {
			writeMany(t, s, 100)
		}
		require.NoError(t, s.Close())
		require.NoError(t, b.Close())
		files, err := filepath.Glob(filepath.Join(snapshots, "*.snap"))
		require.NoError(t, err)
		require.NotEmpty(t, files, "etcd has made a snapshot of its log")
		require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			require.NoError(t, err)
			info, err := d.Info()
			require.NoError(t, err)
			require.Zero(t, info.Mode().Perm()&0o077, "%s: %s", path, info.Mode())
			return nil
		}))
		require.NoError(t, os.WriteFile(old, nil, 0o644)) // as an earlier release left them
	}
}

// fsyncs returns how often the etcds of this process have synced their logs to the disk.
func fsyncs(t *testing.T) uint64 {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "etcd_disk_wal_fsync_duration_seconds" {
			return family.Metric[0].Histogram.GetSampleCount()
		}
	}
	t.Fatal("etcd does not count its calls of fsync")
	return 0
}

// The count is that of the whole process: the test runs while no other one does.
func TestEmbedded_SyncsCommitsUnlessUnsafe(t *testing.T) {
	for _, unsafe := range []bool{false, true} {
		b, err := StartEmbedded(testContext(t), EmbeddedOptions{Dir: t.TempDir(), Unsafe: unsafe})
		require.NoError(t, err)
		s := openStore(t, b, storage.Options{})
		before := fsyncs(t)
		for i := range 3 {
			create(t, s, podKey("default", fmt.Sprint(i)), pod("default", fmt.Sprint(i), ""))
		}
		if count := fsyncs(t) - before; unsafe {
			require.Zero(t, count)
		} else {
			require.GreaterOrEqual(t, count, uint64(3), "one for each commit")
		}
		require.NoError(t, s.Close())
		require.NoError(t, b.Close())
	}
}

// writeMany commits n documents, all at once.
func writeMany(t *testing.T, s *storage.Store, n int) {
	t.Helper()
	errs := make(chan error, n)
	for range n {
		go func() {
			_, err := s.Commit(testContext(t), storage.Write{Op: storage.Create, Key: podKey("default", rand.Text()),
				Value: pod("default", "p", "")})
			errs <- err
		}()
	}
	for range n {
		require.NoError(t, <-errs)
	}
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
