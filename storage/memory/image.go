package memory

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/btree"

	"github.com/coxswain-dev/coxswain/storage"
)

// Image has all documents at one revision. It is immutable and independent of its Backend, which may change or be
// closed later. Any number of Backends may be created from it or restored to it concurrently.
type Image struct {
	revision int64
	time     time.Time // when it was saved, by the clock of its Backend
	size     int64

	mu                sync.Mutex // held while a tree is copied, which writes to it
	records, expiring *btree.BTreeG[*record]
}

// Revision returns the revision of the Image.
func (i *Image) Revision() int64 { return i.revision }

// Without returns the Image without the documents below a prefix: for example the records of running servers, which do
// not run in a copy.
func (i *Image) Without(prefix string) *Image {
	i.mu.Lock()
	rest := &Image{revision: i.revision, time: i.time, size: i.size, records: i.records.Clone(),
		expiring: i.expiring.Clone()}
	i.mu.Unlock()
	var below []*record
	rest.records.AscendGreaterOrEqual(&record{path: prefix}, func(r *record) bool {
		if !strings.HasPrefix(r.path, prefix) {
			return false
		}
		below = append(below, r)
		return true
	})
	for _, r := range below {
		rest.records.Delete(r)
		rest.expiring.Delete(r)
		rest.size -= r.size()
	}
	return rest
}

// Save returns the present state. It copies no documents: later writes copy the parts of the tree that they change.
func (b *Backend) Save(ctx context.Context) (*Image, error) {
	now := b.clock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	return &Image{revision: b.now.Load(), time: now, size: b.size, records: b.present.Clone(),
		expiring: b.expiring.Clone()}, nil
}

// begin fills a new Backend with the content of an image.
func (b *Backend) begin(i *Image) {
	now := b.clock.Now()
	i.mu.Lock()
	b.present, b.expiring = i.records.Clone(), btree.NewG(degree, endsBefore)
	i.mu.Unlock()
	b.size = i.size
	b.now.Store(i.revision)
	b.history.compacted = i.revision
	i.expiring.Ascend(func(r *record) bool {
		b.setExpiration(r, i.expiration(r, now))
		return true
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.awaitExpiry()
}

// expiration returns when a record expires if it has as much time left now as it had in the image.
func (i *Image) expiration(r *record, now time.Time) time.Time { return now.Add(r.expires.Sub(i.time)) }

// setExpiration changes the expiration of a present record. As in etcd, watchers do not see it.
func (b *Backend) setExpiration(r *record, until time.Time) {
	b.expiring.Delete(r)
	updated := *r
	updated.expires = until
	b.present.ReplaceOrInsert(&updated)
	b.expiring.ReplaceOrInsert(&updated)
}

// Restore restores the documents of an Image and returns the resulting revision. It writes only the
// differences, as ordinary changes at new revisions: one for deletions, one for all other writes. A document that was
// deleted and created again since is deleted first, so that no watcher mistakes one for the other. A document with a
// time to live has as much of it left as in the Image. Documents below one of the prefixes in keep do not change, even
// if the Image has them.
func (b *Backend) Restore(ctx context.Context, i *Image, keep ...string) (int64, error) {
	now := b.clock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(ctx); err != nil {
		return 0, err
	}
	deletions, writes := b.differences(i, now, keep)
	for _, changes := range [][]change{deletions, writes} {
		if len(changes) > 0 {
			b.apply(max(b.now.Load(), i.revision)+1, changes)
		}
	}
	b.awaitExpiry()
	return b.now.Load(), nil
}

// differences returns the changes from the present to an image, except below the prefixes in keep. If only the
// expiration of a document differs, it is corrected at once. The caller holds the lock.
func (b *Backend) differences(i *Image, now time.Time, keep []string) (deletions, writes []change) {
	excluded := func(r *record) bool {
		return slices.ContainsFunc(keep, func(prefix string) bool { return strings.HasPrefix(r.path, prefix) })
	}
	var unchanged []*record
	i.records.Ascend(func(saved *record) bool {
		if excluded(saved) {
			return true
		}
		present := b.get(saved.path)
		if present != nil && present.birth != saved.birth {
			deletions = append(deletions, change{before: present})
			present = nil
		}
		if present == nil || !alike(present, saved) {
			restored := &record{path: saved.path, value: saved.value, birth: saved.birth}
			if !saved.expires.IsZero() {
				restored.expires = i.expiration(saved, now)
			}
			writes = append(writes, change{before: present, after: restored})
		} else if !saved.expires.IsZero() {
			unchanged = append(unchanged, saved)
		}
		return true
	})
	b.present.Ascend(func(present *record) bool {
		if !i.records.Has(present) && !excluded(present) {
			deletions = append(deletions, change{before: present})
		}
		return true
	})
	for _, saved := range unchanged {
		b.setExpiration(b.get(saved.path), i.expiration(saved, now))
	}
	return deletions, writes
}

// alike reports whether two states of one document differ only in their revision and the time left.
func alike(x, y *record) bool {
	return x == y || x.expires.IsZero() == y.expires.IsZero() && bytes.Equal(x.value, y.value)
}

var _ storage.Backend = (*Backend)(nil)
