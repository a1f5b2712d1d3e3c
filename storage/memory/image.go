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

// Image is all documents at one revision. It is immutable and independent of its Backend, which may go on or be
// closed; any number of Backends may be made of it or restored to it, concurrently.
type Image struct {
	revision int64
	at       time.Time // when it was saved, by the clock of its Backend
	size     int64

	mu               sync.Mutex // to copy a tree is a write to it
	records, mortals *btree.BTreeG[*record]
}

// Revision is the revision that the Image was saved at.
func (i *Image) Revision() int64 { return i.revision }

// Without is the Image without the documents below a prefix: such as records of servers that run, of which those of a
// copy are others.
func (i *Image) Without(prefix string) *Image {
	i.mu.Lock()
	rest := &Image{revision: i.revision, at: i.at, size: i.size, records: i.records.Clone(),
		mortals: i.mortals.Clone()}
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
		rest.mortals.Delete(r)
		rest.size -= r.size()
	}
	return rest
}

// Save returns the present state. It copies nothing: what is written afterwards is written elsewhere.
func (b *Backend) Save(ctx context.Context) (*Image, error) {
	at := b.clock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	return &Image{revision: b.now.Load(), at: at, size: b.size, records: b.present.Clone(),
		mortals: b.mortals.Clone()}, nil
}

// begin makes an image the content of a new Backend.
func (b *Backend) begin(i *Image) {
	now := b.clock.Now()
	i.mu.Lock()
	b.present, b.mortals = i.records.Clone(), btree.NewG(degree, endsBefore)
	i.mu.Unlock()
	b.size = i.size
	b.now.Store(i.revision)
	b.history.compacted = i.revision
	i.mortals.Ascend(func(r *record) bool {
		b.prolong(r, i.left(r, now))
		return true
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.awaitExpiry()
}

// left is when a record ends that has as much time left now as it had in the image.
func (i *Image) left(r *record, now time.Time) time.Time { return now.Add(r.expires.Sub(i.at)) }

// prolong gives a present record another end of its time to live. That is no change that anyone is told of, as in
// etcd.
func (b *Backend) prolong(r *record, until time.Time) {
	b.mortals.Delete(r)
	moved := *r
	moved.expires = until
	b.present.ReplaceOrInsert(&moved)
	b.mortals.ReplaceOrInsert(&moved)
}

// Restore brings back the documents of an Image, and returns the revision at which they are. Only differences are
// written, as changes like others, and what is written has new revisions: one for deletions, one for all else. A
// document that was deleted and created anew since is first deleted, so that nobody takes the one for the other.
// Documents with a time to live have as much of it left as they had in the Image. Those below one of the prefixes of
// keep stay as they are, whatever the Image has there.
func (b *Backend) Restore(ctx context.Context, i *Image, keep ...string) (int64, error) {
	now := b.clock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(ctx); err != nil {
		return 0, err
	}
	gone, written := b.differences(i, now, keep)
	for _, changes := range [][]change{gone, written} {
		if len(changes) > 0 {
			b.apply(max(b.now.Load(), i.revision)+1, changes)
		}
	}
	b.awaitExpiry()
	return b.now.Load(), nil
}

// differences are the changes that lead from the present to an image. Where only the time that is left differs, it is
// corrected at once. Documents below the prefixes of keep do not count. The lock is held.
func (b *Backend) differences(i *Image, now time.Time, keep []string) (gone, written []change) {
	stays := func(r *record) bool {
		return slices.ContainsFunc(keep, func(prefix string) bool { return strings.HasPrefix(r.path, prefix) })
	}
	var prolonged []*record
	i.records.Ascend(func(then *record) bool {
		if stays(then) {
			return true
		}
		present := b.get(then.path)
		if present != nil && present.birth != then.birth {
			gone = append(gone, change{before: present})
			present = nil
		}
		if present == nil || !alike(present, then) {
			back := &record{path: then.path, value: then.value, birth: then.birth}
			if !then.expires.IsZero() {
				back.expires = i.left(then, now)
			}
			written = append(written, change{before: present, after: back})
		} else if !then.expires.IsZero() {
			prolonged = append(prolonged, then)
		}
		return true
	})
	b.present.Ascend(func(present *record) bool {
		if !i.records.Has(present) && !stays(present) {
			gone = append(gone, change{before: present})
		}
		return true
	})
	for _, then := range prolonged {
		b.prolong(b.get(then.path), i.left(then, now))
	}
	return gone, written
}

// alike reports whether two states of one document differ in nothing but their revision and the time that is left.
func alike(x, y *record) bool {
	return x == y || x.expires.IsZero() == y.expires.IsZero() && bytes.Equal(x.value, y.value)
}

var _ storage.Backend = (*Backend)(nil)
