package memory

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/google/btree"

	"github.com/coxswain-dev/coxswain/storage"
)

// history is the log of changes, and states along it, so that no read has to take back many changes.
type history struct {
	revisions []revision // those that have changed something, in order
	// compacted is the oldest revision whose state can be read.
	compacted int64
	size      int64 // in bytes
	states    []state
	since     int // changes since the last of states
}

// revision is the changes of one transaction.
type revision struct {
	number  int64
	changes []change
}

// change is one put or, without an after, one deletion.
type change struct{ before, after *record }

func (c *change) path() string {
	if c.after != nil {
		return c.after.path
	}
	return c.before.path
}

// size is the memory that is held because of a change.
func (c *change) size() int64 {
	if c.before == nil {
		return recordOverhead
	}
	return c.before.size()
}

// state is everything at a revision.
type state struct {
	number  int64
	records *btree.BTreeG[*record]
}

// stateEvery is after how many changes a state is kept, and so how many are taken back by a read.
const stateEvery = 1024

// append adds a revision, after which everything is as in now.
func (h *history) append(number int64, changes []change, now *btree.BTreeG[*record]) {
	h.revisions = append(h.revisions, revision{number, changes})
	for i := range changes {
		h.size += changes[i].size()
	}
	if h.since += len(changes); h.since >= stateEvery {
		h.since = 0
		h.states = append(h.states, state{number, now.Clone()})
	}
	if h.size > maxHistory {
		h.halve()
	}
}

// halve compacts the older half of the bytes.
func (h *history) halve() {
	left := h.size
	for i := range h.revisions {
		if left <= maxHistory/2 || i == len(h.revisions)-1 {
			h.compact(h.revisions[i].number)
			return
		}
		left -= h.revisions[i].size()
	}
}

func (r *revision) size() (size int64) {
	for i := range r.changes {
		size += r.changes[i].size()
	}
	return size
}

// compact drops what is needed only to read states before a revision.
func (h *history) compact(number int64) {
	h.compacted = number
	n := h.from(number)
	for i := range h.revisions[:n] {
		h.size -= h.revisions[i].size()
	}
	h.revisions = slices.Clone(h.revisions[n:])
	h.states = slices.Clone(h.states[h.stateFrom(number):])
}

// from is the index of the first revision not before a number.
func (h *history) from(number int64) int {
	return sort.Search(len(h.revisions), func(i int) bool { return h.revisions[i].number >= number })
}

// stateFrom is the index of the first state not before a revision.
func (h *history) stateFrom(number int64) int {
	return sort.Search(len(h.states), func(i int) bool { return h.states[i].number >= number })
}

// past returns the records below a prefix at a revision in a tree of the caller's own, made of the present one and
// what has changed since.
func (h *history) past(number int64, prefix string, present *btree.BTreeG[*record]) *btree.BTreeG[*record] {
	base, later := present, h.revisions[h.from(number+1):]
	if i := h.stateFrom(number); i < len(h.states) {
		base, later = h.states[i].records, h.revisions[h.from(number+1):h.from(h.states[i].number+1)]
	}
	records := base.Clone()
	for _, r := range slices.Backward(later) {
		for _, c := range slices.Backward(r.changes) {
			switch {
			case !strings.HasPrefix(c.path(), prefix):
			case c.before == nil:
				records.Delete(c.after)
			default:
				records.ReplaceOrInsert(c.before)
			}
		}
	}
	return records
}

// Range reads records in the order of their paths.
func (b *Backend) Range(ctx context.Context, r storage.RangeRequest) (*storage.RangeResult, error) {
	if 0 < r.Revision && r.Revision < b.now.Load() {
		return b.rangePast(ctx, r)
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	now := b.now.Load()
	if r.Revision > now {
		return nil, fmt.Errorf("%w: %d", storage.ErrFuture, r.Revision)
	}
	return read(b.present, r, now), nil
}

func (b *Backend) rangePast(ctx context.Context, r storage.RangeRequest) (*storage.RangeResult, error) {
	b.mu.Lock() // a tree is copied
	now, err := b.now.Load(), b.usable(ctx)
	if err == nil && r.Revision < b.history.compacted {
		err = fmt.Errorf("%w: %d is compacted", storage.ErrExpired, r.Revision)
	}
	if err != nil {
		b.mu.Unlock()
		return nil, err
	}
	records := b.history.past(r.Revision, r.Prefix, b.present)
	b.mu.Unlock()
	return read(records, r, now), nil
}

// read collects what a request asks of a tree.
func read(records *btree.BTreeG[*record], r storage.RangeRequest, now int64) *storage.RangeResult {
	result := &storage.RangeResult{Revision: now}
	records.AscendGreaterOrEqual(&record{path: max(r.Prefix, r.Start)}, func(found *record) bool {
		if !strings.HasPrefix(found.path, r.Prefix) {
			return false
		}
		if result.Count++; r.Limit <= 0 || result.Count <= r.Limit {
			result.KVs = append(result.KVs, found.kv())
		} else {
			result.More = true
		}
		return true
	})
	return result
}
