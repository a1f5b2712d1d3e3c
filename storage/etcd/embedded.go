package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/coxswain-dev/coxswain/storage"
)

// EmbeddedOptions configure the etcd that runs inside the process.
type EmbeddedOptions struct {
	Dir    string // data directory, created with mode 0700
	Prefix string // "/registry" when empty
	// QuotaBytes limits the size of the database; 0 is etcd's default of 2 GiB. Beyond it, only deletions are accepted
	// until there is room again.
	QuotaBytes int64
	// Unsafe disables fsync, for tests: objects survive the end of the process, but not a power failure.
	Unsafe bool
	Log    *slog.Logger // slog.Default when nil
}

// A lone member elects itself one to five ticks after it starts, because raft draws its election timeout at random and
// etcd lets a single member skip all but the last tick of it. The tick thus determines the duration of a start (three
// ticks on average) and the cost of idling (a wake-up for each tick, tens of times a second, forever). It has no other
// effect, because there is no other member to miss heartbeats.
const (
	embeddedTick     = 15 * time.Millisecond
	embeddedElection = 5 * embeddedTick // the least that etcd accepts
)

// The raft log is kept in memory for members that lag behind. A lone member has none, so that a short log with few
// entries beyond the last snapshot is enough. At a start, etcd reads the entries after the last snapshot and applies
// those that the database lacks. Beyond 5,000 entries etcd rejects proposals meanwhile, including its own first one,
// which it repeats without a pause.
const (
	embeddedSnapshotCount  = 1000
	embeddedCatchUpEntries = 100
)

// walSegment is the size of a segment of the write-ahead log. etcd always allocates two segments. With etcd's default
// of 64 MB, an idle control plane would use 128 MB of a memory-backed storage.
const walSegment = 8 << 20

// UseSmallSegments makes the segments of the write-ahead log 8 MiB in place of etcd's 64. The size is a variable of
// etcd's wal package, which every etcd of the process reads: StartEmbedded calls this, and a process that starts no
// etcd keeps the variable as it is.
func UseSmallSegments() { smallSegments() }

var smallSegments = sync.OnceFunc(func() { wal.SegmentSizeBytes = walSegment })

// StartEmbedded starts etcd in this process and returns when it serves. The server has no listener and is reached only
// through function calls. Therefore any number of servers can run in one process, and no other process on the machine
// can bypass the API server. The error is ErrDamaged if etcd cannot continue from its files, and ErrNoSpace if the disk
// has no room for a new etcd. If another process runs an etcd on the same files, StartEmbedded waits up to ten seconds
// for it to end.
func StartEmbedded(ctx context.Context, o EmbeddedOptions) (storage.Backend, error) {
	if o.Dir == "" {
		return nil, errors.New("storage: the embedded etcd needs a data directory")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("storage: data directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("storage: data directory: %w", err)
	}
	if err := awaitLock(ctx, filepath.Join(dir, filepath.FromSlash(databaseFile)), lockPatience); err != nil {
		return nil, fmt.Errorf("storage: start etcd in %s: %w", dir, err)
	}
	if err := inspect(dir); err != nil {
		return nil, fmt.Errorf("storage: start etcd in %s: %w", dir, err)
	}
	if err := makePrivate(dir); err != nil {
		return nil, fmt.Errorf("storage: data directory: %w", err)
	}
	if err := roomToStart(dir); err != nil {
		return nil, fmt.Errorf("storage: start etcd in %s: %w", dir, err)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	UseSmallSegments()
	server, err := openEtcd(ctx, embeddedConfig(dir, o), o.Log)
	if err != nil {
		return nil, fmt.Errorf("storage: start etcd in %s: %w", dir, err)
	}
	client := v3client.New(server.Server)
	b := newBackend(client, o.Prefix)
	b.server, b.disk = server, diskOf(dir)
	if o.Unsafe {
		b.disk.database, b.disk.reserve = "", "" // data that may be lost needs no reserve
	}
	if err := b.disk.full(); err != nil {
		o.Log.Warn("cannot write documents", "err", err)
	}
	b.closer = sync.OnceValue(func() error {
		// The client has no connection, so the only error of Close is the end of the client's context.
		_ = client.Close()
		server.Close()
		return nil
	})
	return b, nil
}

// makePrivate removes other users' access to a data directory, because it will contain Secrets. The directory may have
// been created or copied by another program.
func makePrivate(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || d.Type()&fs.ModeSymlink != 0:
			return err
		case d.IsDir():
			privateByDefault(path)
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	})
}

func embeddedConfig(dir string, o EmbeddedOptions) *embed.Config {
	// The member's own address is part of the cluster's membership, but no client connects to it.
	self := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
	c := embed.NewConfig()
	c.Name = "coxswain"
	c.Dir = dir
	c.ListenPeerUrls, c.ListenClientUrls = nil, nil
	c.AdvertisePeerUrls, c.AdvertiseClientUrls = []url.URL{self}, []url.URL{self}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.EnableGRPCGateway = false
	c.TickMs = uint(embeddedTick.Milliseconds())
	c.ElectionMs = uint(embeddedElection.Milliseconds())
	c.SnapshotCount = embeddedSnapshotCount
	c.SnapshotCatchUpEntries = embeddedCatchUpEntries
	c.QuotaBackendBytes = o.QuotaBytes
	c.UnsafeNoFsync = o.Unsafe
	return c
}
