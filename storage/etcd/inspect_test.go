package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
	etcdschema "go.etcd.io/etcd/server/v3/storage/schema"

	"github.com/coxswain-dev/coxswain/storage"
)

// etcdFiles makes the files of an etcd that has taken many writes and was stopped in order.
func etcdFiles(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "etcd")
	b, err := StartEmbedded(testContext(t), EmbeddedOptions{Dir: dir, Unsafe: true})
	require.NoError(t, err)
	s := openStore(t, b, storage.Options{})
	for range 15 {
		writeMany(t, s, 100)
	}
	require.NoError(t, s.Close())
	require.NoError(t, b.Close())
	return dir
}

func copyFiles(t *testing.T, from string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "etcd")
	require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
	return dir
}

// TestEmbedded_ReportsDamageOfItsFiles damages the files of an etcd in many ways. Each time the
// start either succeeds with all that was written, or fails with an error that names the remedy. It
// never panics, hangs, or starts with less.
func TestEmbedded_ReportsDamageOfItsFiles(t *testing.T) {
	t.Parallel()
	whole := etcdFiles(t)
	truncate := func(part int64) func(t *testing.T, file string) {
		return func(t *testing.T, file string) {
			info, err := os.Stat(file)
			require.NoError(t, err)
			require.NoError(t, os.Truncate(file, info.Size()*part/100))
		}
	}
	edit := func(change func(content []byte)) func(t *testing.T, file string) {
		return func(t *testing.T, file string) {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			change(content)
			require.NoError(t, os.WriteFile(file, content, 0o600))
		}
	}
	// used returns a file without the zeros at its end.
	used := func(b []byte) []byte { return bytes.TrimRight(b, "\x00") }
	flip := func(percent int) func(t *testing.T, file string) {
		return edit(func(b []byte) {
			b = used(b)
			start := (len(b) - 1) * percent / 100
			// Flip one bit of each of 16 bytes: the log pads its records with up to 7 unused bytes, before a length of
			// 8 bytes.
			for i := start; i < min(start+16, len(b)); i++ {
				b[i] ^= 0x10
			}
		})
	}
	noise := func(seed uint64) func(t *testing.T, file string) {
		return edit(func(b []byte) {
			b = used(b)
			r := rand.New(rand.NewPCG(seed, 0))
			for range 1 + r.IntN(4) {
				i := r.IntN(len(b))
				switch r.IntN(3) {
				case 0:
					b[i] ^= 1 << r.IntN(8)
				case 1:
					clear(b[i:min(i+r.IntN(4096), len(b))])
				default:
					copy(b[i:], b[r.IntN(len(b)):][:1])
				}
			}
		})
	}
	cut := func(t *testing.T, file string) {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(file, int64(len(used(content))/2)))
	}
	damages := map[string]func(t *testing.T, file string){
		"empty":       truncate(0),
		"half":        edit(func(b []byte) { clear(used(b)[len(used(b))/2:]) }),
		"cut in half": cut,
		"zeros":       edit(func(b []byte) { clear(b) }),
		"zeroed head": edit(func(b []byte) { clear(b[:min(16<<10, len(b))]) }),
		"noise":       edit(func(b []byte) { copy(b, bytes.Repeat([]byte("coxswain"), len(b)/8)) }),
		"bit in head": flip(0),
		"bit early":   flip(2),
		"bit in body": flip(50),
		"bit in tail": flip(99),
		"bit i end":   flip(100),
		"missing":     func(t *testing.T, f string) { require.NoError(t, os.Remove(f)) },
		"a folder": func(t *testing.T, f string) {
			require.NoError(t, os.Remove(f))
			require.NoError(t, os.Mkdir(f, 0o700))
		},
		"a pipe": func(t *testing.T, f string) {
			require.NoError(t, os.Remove(f))
			require.NoError(t, syscall.Mkfifo(f, 0o600))
		},
		"a dead link": func(t *testing.T, f string) {
			require.NoError(t, os.Remove(f))
			require.NoError(t, os.Symlink("nowhere", f))
		},
	}
	for seed := range uint64(8) {
		damages[fmt.Sprint("noise ", seed)] = noise(seed)
	}
	for _, pattern := range []string{"wal/*.wal", "snap/db", "snap/*.snap"} {
		for name, damage := range damages {
			t.Run(pattern+" "+name, func(t *testing.T) {
				t.Parallel()
				dir := copyFiles(t, whole)
				files, err := filepath.Glob(filepath.Join(dir, "member", filepath.FromSlash(pattern)))
				require.NoError(t, err)
				require.NotEmpty(t, files)
				damage(t, slices.Max(files))
				// etcd does without the snapshots of its log. Within its database are values, which have no checksums.
				values := pattern == "snap/db" && (strings.Contains(name, "bit") || strings.Contains(name, "noise "))
				if values {
					if out := startElsewhere(t, dir); out != "" {
						require.Contains(t, out, "restore a snapshot")
						require.Contains(t, out, dir)
					}
					return
				}
				b, err := StartEmbedded(testContext(t), EmbeddedOptions{Dir: dir, Unsafe: true})
				if err != nil {
					require.NotEqual(t, "snap/*.snap", pattern, err)
					require.ErrorContains(t, err, "restore a snapshot")
					require.ErrorContains(t, err, dir)
					return
				}
				defer func() { require.NoError(t, b.Close()) }()
				require.True(t, pattern == "snap/*.snap" || strings.HasPrefix(name, "noise "),
					"it started all the same")
				r, err := b.Range(testContext(t), storage.RangeRequest{Limit: 1})
				require.NoError(t, err)
				require.EqualValues(t, 1500, r.Count)
				_, err = b.ReplaceNote(testContext(t), &storage.Note{}, []byte("written"))
				require.NoError(t, err)
			})
		}
	}
}

func TestEmbedded_RejectsFilesOfAnotherEtcd(t *testing.T) {
	t.Parallel()
	whole, other := etcdFiles(t), filepath.Join(t.TempDir(), "etcd")
	b, err := StartEmbedded(testContext(t), EmbeddedOptions{Dir: other, Unsafe: true})
	require.NoError(t, err)
	require.NoError(t, b.Close())
	member := func(dir, name string) string { return filepath.Join(dir, "member", name) }

	for _, part := range []string{"wal", "snap"} {
		for _, from := range [][2]string{{whole, other}, {other, whole}} {
			dir := copyFiles(t, from[0])
			require.NoError(t, os.RemoveAll(member(dir, part)))
			requireDamaged(t, dir, part+" is missing")
			require.NoError(t, os.RemoveAll(member(dir, part)))
			require.NoError(t, os.CopyFS(member(dir, part), os.DirFS(member(from[1], part))))
			requireDamaged(t, dir, part+" of another")
		}
	}
	for name, change := range map[string]func(tx *bolt.Tx) error{
		"cluster of 2 members": func(tx *bolt.Tx) error {
			return tx.Bucket(etcdschema.Members.Name()).Put([]byte("00000000000000aa"),
				[]byte(`{"id":170,"peerURLs":["http://a"],"name":"b"}`))
		},
		"database of aa": func(tx *bolt.Tx) error {
			members := tx.Bucket(etcdschema.Members.Name())
			k, v := members.Cursor().First()
			id, own := string(k), bytes.Clone(v)
			if err := members.Delete([]byte(id)); err != nil {
				return err
			}
			return members.Put([]byte("00000000000000aa"), own)
		},
		"version": func(tx *bolt.Tx) error {
			return tx.Bucket(etcdschema.Meta.Name()).Put([]byte("storageVersion"), []byte("9.9.0"))
		},
		"invalid downgrade": func(tx *bolt.Tx) error {
			return tx.Bucket(etcdschema.Cluster.Name()).Put([]byte("clusterVersion"), []byte("9.9.0"))
		},
	} {
		dir := copyFiles(t, whole)
		db, err := bolt.Open(filepath.Join(dir, filepath.FromSlash(databaseFile)), 0o600, nil)
		require.NoError(t, err)
		require.NoError(t, db.Update(change))
		require.NoError(t, db.Close())
		out := startElsewhere(t, dir)
		require.Contains(t, out, name)
		require.Contains(t, out, "restore a snapshot")
	}
}

func requireDamaged(t *testing.T, dir, what string) {
	t.Helper()
	b, err := StartEmbedded(testContext(t), EmbeddedOptions{Dir: dir, Unsafe: true})
	if err == nil {
		require.NoError(t, b.Close())
	}
	require.ErrorIs(t, err, ErrDamaged, what)
}

func TestEmbedded_WaitsForALockForALimitedTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	database := filepath.Join(dir, filepath.FromSlash(databaseFile))
	require.NoError(t, os.MkdirAll(filepath.Dir(database), 0o700))
	db, err := bolt.Open(database, 0o600, nil)
	require.NoError(t, err)
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err = StartEmbedded(ctx, EmbeddedOptions{Dir: dir, Unsafe: true})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "is locked by another process")
	require.ErrorContains(t, awaitLock(context.Background(), database, time.Millisecond), "waited for 1ms")
	holder := LockHolder(database)
	require.Contains(t, holder, fmt.Sprintf("(process %d: ", os.Getpid()))
	require.Contains(t, holder, filepath.Base(os.Args[0]))
	require.Empty(t, LockHolder(filepath.Join(dir, "none")))
}

func TestEmbedded_ReportsTheFilesOfAFailedStart(t *testing.T) {
	t.Parallel()
	err := startError(&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})
	require.ErrorIs(t, err, storage.ErrNoSpace)
	require.NotContains(t, err.Error(), "restore")
	require.NotContains(t, startError(os.ErrPermission).Error(), "restore")
	require.ErrorContains(t, startError(errors.New("x")), "x; if its files are damaged, restore a snapshot")
}

// TestEmbedded_NeedsRoom starts on a file system of 4 MiB, new and with files that fit just so.
func TestEmbedded_NeedsRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Skipf("SKIPPED: no small disk can be mounted here, which takes root: %v", err)
	}
	defer func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) }()
	_, err := StartEmbedded(testContext(t), EmbeddedOptions{Dir: filepath.Join(dir, "new"), Unsafe: true})
	require.ErrorIs(t, err, storage.ErrNoSpace)
	require.ErrorContains(t, err, "MiB are free, and a new etcd needs 24 MiB")

	old := filepath.Join(dir, "old")
	require.NoError(t, os.MkdirAll(filepath.Join(old, "member", "wal"), 0o700)) // a start that was cut short there
	require.Contains(t, startElsewhere(t, old), "the disk is full")
}

// TestEmbedded_MakesNoProposalBeforeItHasItsLog cannot be parallel, because it reads the log of the process.
func TestEmbedded_MakesNoProposalBeforeItHasItsLog(t *testing.T) {
	dir := t.TempDir()
	b, err := StartEmbedded(testContext(t), EmbeddedOptions{Dir: dir, Unsafe: true})
	require.NoError(t, err)
	client := b.(*backend).client
	errs := make(chan error, 50)
	for i := range cap(errs) { // more entries than etcd lets be decided and not applied
		go func() {
			var failed error
			for n := range 120 {
				_, err := client.Put(testContext(t), fmt.Sprintf("/registry/%d/%d", i, n), "x")
				failed = errors.Join(failed, err)
			}
			errs <- failed
		}()
	}
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.NoError(t, b.Close())

	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	b, err = StartEmbedded(testContext(t), EmbeddedOptions{Dir: dir, Unsafe: true})
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.NotContains(t, log.String(), "too many requests")
}
