// Package memory is a storage.Backend in this process's memory: etcd's behaviour without etcd, for a control plane
// that lives as long as a test. It starts at once, and what is written is gone with it.
//
// The present is an ordered tree that is copied on write, and the past a log of changes: an old state is a copy of
// the tree from which the changes since are taken back. Save keeps a state for the price of one pointer. A Backend
// can be brought back to it, and any number of new ones can begin with it.
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

// Options tune a Backend. The zero value is an empty one by the machine's clock.
type Options struct {
	// Clock measures times to live. It has to be a clock.WithDelayedExecution, as those of k8s.io/utils/clock are. Nil:
	// the real clock.
	Clock clock.WithTicker
	// QuotaBytes is how large documents and history may grow together before only deletions are taken. 0 is etcd's
	// default, 2 GiB.
	QuotaBytes int64
	// Image is the state to begin with. Revisions go on from it, and earlier ones are compacted.
	Image *Image
}

const (
	defaultQuota = 2 << 30
	// maxHistory is how many bytes of history are kept. Beyond them the older half is compacted, because a test has no
	// disk to put it on.
	maxHistory = 64 << 20
	// recordOverhead is roughly what a record costs beside its path and value.
	recordOverhead = 128
)

// Backend is a storage.Backend. Its methods are safe for concurrent use.
type Backend struct {
	clock clock.WithDelayedExecution
	quota int64
	// now is the current revision. It changes under mu, and is read without.
	now     atomic.Int64
	done    chan struct{} // closed by Close
	running sync.WaitGroup

	mu        sync.RWMutex
	closed    bool
	present   *btree.BTreeG[*record] // by path
	history   history
	size      int64 // of the present, in bytes
	watches   map[*watch]struct{}
	mortals   *btree.BTreeG[*record] // those of the present with a time to live, by its end
	expiry    expiry
	note      []byte
	noteSince int64 // the note's revision; 0: there is none
}

// record is one state of a document. It is immutable.
type record struct {
	path     string
	value    []byte
	revision int64
	// birth tells documents apart that follow each other at a path. It is unique in the process, so that it means the
	// same in every Backend that began with the same Image.
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
	b.mortals = btree.NewG(degree, endsBefore)
	b.now.Store(1) // as in a new etcd
	return b
}

// Close ends all watches and forgets everything. Images stay.
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

// usable returns an error if nothing should be begun any more. The lock is held.
func (b *Backend) usable(ctx context.Context) error {
	if b.closed {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
	}
	return nil
}

// get returns the present record at a path, nil if there is none. The lock is held.
func (b *Backend) get(path string) *record {
	r, _ := b.present.Get(&record{path: path})
	return r
}

// Revision returns the current revision, at which nothing is left that has ended.
func (b *Backend) Revision(ctx context.Context) (int64, error) {
	b.expireDue()
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.now.Load(), b.usable(ctx)
}

// Status describes a database that has no file: it has no free space in it, and is over its quota only until
// something is deleted or compacted.
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

// Defragment does nothing: the space that compaction frees is free.
func (b *Backend) Defragment(context.Context) error { return nil }

// Disarm does nothing: an alarm lasts exactly as long as its cause.
func (b *Backend) Disarm(context.Context, storage.Alarm) error { return nil }

// Snapshot fails with errors.ErrUnsupported: there is no database whose file etcd could continue from.
func (b *Backend) Snapshot(context.Context) (io.ReadCloser, error) {
	return nil, fmt.Errorf("a store in memory has no database file: %w", errors.ErrUnsupported)
}

// Note reads the note.
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
