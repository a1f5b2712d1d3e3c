// Package memory implements storage.Backend in the memory of this process. It behaves like etcd, and serves control
// planes that live as long as a test. It starts at once and does not keep its content when it is closed.
//
// The present state is an ordered copy-on-write tree, the past a log of changes. An old state is a copy of the tree
// with the later changes undone. Save keeps a state for the price of one pointer. A Backend can be restored to it, and
// any number of new Backends can start with it.
package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/storage"
)

// Options configure a Backend. The zero value is for an empty Backend with the real clock.
type Options struct {
	// Clock measures times to live. It must implement clock.WithDelayedExecution, as the clocks of k8s.io/utils/clock
	// do. nil is the real clock.
	Clock clock.WithTicker
	// QuotaBytes limits the size of documents and history together. Beyond it, only deletions are accepted. 0 is etcd's
	// default, 2 GiB.
	QuotaBytes int64
	// Image is the initial state, or nil. Revisions continue from it; earlier ones are compacted.
	Image *Image
}

const (
	defaultQuota = 2 << 30
	// maxHistory limits the bytes of the history. Beyond it the older half is compacted, because the history is in
	// memory and tests do not compact it.
	maxHistory = 64 << 20
	// recordOverhead is the approximate size of a record without its path and value.
	recordOverhead = 128
)

// Backend is a storage.Backend. Its methods are safe for concurrent use.
type Backend struct {
	clock clock.WithDelayedExecution
	quota int64
	// now is the current revision. It is written with mu held, and read without.
	now     atomic.Int64
	done    chan struct{} // closed by Close
	running sync.WaitGroup

	mu        sync.RWMutex
	closed    bool
	present   *btree.BTreeG[*record] // by path
	history   history
	size      int64 // of the present records, in bytes
	watches   map[*watch]struct{}
	expiring  *btree.BTreeG[*record] // the present records with a time to live, by expiration
	expiry    expiry
	note      []byte
	noteSince int64 // the note's revision; 0 if there is no note
}

// record is one state of a document. It is immutable.
type record struct {
	path     string
	value    []byte
	revision int64
	// birth distinguishes documents that were created one after another at the same path. It is unique in the process,
	// so that it has the same meaning in every Backend that started with the same Image.
	birth   uint64
	expires time.Time // zero: never
}

var births atomic.Uint64

func (r *record) kv() storage.KV {
	if r == nil {
		return storage.KV{}
	}
	return storage.KV{Path: r.path, Value: r.value, Revision: r.revision}
}

func (r *record) size() int64 { return int64(len(r.path) + len(r.value) + recordOverhead) }

const degree = 32

// New returns a Backend, which must be closed.
func New(o Options) *Backend {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.QuotaBytes <= 0 {
		o.QuotaBytes = defaultQuota
	}
	b := &Backend{
		clock: o.Clock.(clock.WithDelayedExecution), quota: o.QuotaBytes,
		done:    make(chan struct{}),
		watches: map[*watch]struct{}{},
	}
	if o.Image != nil {
		b.begin(o.Image)
		return b
	}
	b.present = btree.NewG(degree, func(x, y *record) bool { return x.path < y.path })
	b.expiring = btree.NewG(degree, endsBefore)
	b.now.Store(1) // as in a new etcd
	return b
}

// Close ends all watches and drops the content. Images stay valid.
func (b *Backend) Close() error {
	b.mu.Lock()
	if !b.closed {
		b.closed = true
		b.awaitExpiry()
		close(b.done)
	}
	b.mu.Unlock()
	b.running.Wait()
	return nil
}

var errClosed = fmt.Errorf("%w: the store in memory is closed", storage.ErrUnavailable)

// usable returns an error if the Backend is closed or ctx has ended. The caller holds the lock.
func (b *Backend) usable(ctx context.Context) error {
	if b.closed {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
	}
	return nil
}

// get returns the present record at a path, or nil. The caller holds the lock.
func (b *Backend) get(path string) *record {
	r, _ := b.present.Get(&record{path: path})
	return r
}

// Revision returns the current revision. All documents that have expired by now are deleted at it.
func (b *Backend) Revision(ctx context.Context) (int64, error) {
	b.expireDue()
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.now.Load(), b.usable(ctx)
}

// Status describes a database without a file. It has no free space inside, and it exceeds its quota only until
// documents are deleted or history is compacted.
func (b *Backend) Status(ctx context.Context) (*storage.Status, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	size := b.size + b.history.size
	s := &storage.Status{Revision: b.now.Load(), Size: size, InUse: size, Quota: b.quota, Embedded: true}
	if size > b.quota {
		s.Alarms = []storage.Alarm{storage.NoSpace}
	}
	return s, nil
}

// Compact drops the history before a revision.
func (b *Backend) Compact(ctx context.Context, revision int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(ctx); err != nil {
		return err
	}
	switch {
	case revision <= b.history.compacted:
		return fmt.Errorf("%w: %d is compacted", storage.ErrExpired, revision)
	case revision > b.now.Load():
		return fmt.Errorf("%w: %d", storage.ErrFuture, revision)
	}
	b.history.compact(revision)
	return nil
}

// Defragment is a no-op: compaction frees memory at once.
func (b *Backend) Defragment(context.Context) error { return nil }

// Disarm is a no-op: an alarm lasts exactly as long as its cause.
func (b *Backend) Disarm(context.Context, storage.Alarm) error { return nil }

// Snapshot fails with errors.ErrUnsupported: there is no database file that etcd could continue from.
func (b *Backend) Snapshot(context.Context) (io.ReadCloser, error) {
	return nil, fmt.Errorf("a store in memory has no database file: %w", errors.ErrUnsupported)
}

// Note returns the note.
func (b *Backend) Note(ctx context.Context) (*storage.Note, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	return &storage.Note{Value: b.note, Revision: b.noteSince, At: b.now.Load()}, nil
}

// ReplaceNote replaces the note if it is still the old one.
func (b *Backend) ReplaceNote(ctx context.Context, old *storage.Note, value []byte) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(ctx); err != nil || old.Revision != b.noteSince {
		return false, err
	}
	b.note, b.noteSince = append([]byte(nil), value...), b.now.Add(1)
	return true, nil
}
