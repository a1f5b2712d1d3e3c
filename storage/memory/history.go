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

// history is the log of changes. It also has full states at intervals, so that no read has to undo many changes.
type history struct {
	revisions []revision // revisions with changes, in ascending order
	// compacted is the oldest revision whose state can be read.
	compacted int64
	size      int64 // of the changes, in bytes
	states    []state
	since     int // the number of changes since the last state
}

// revision holds the changes of one transaction.
type revision struct {
	number  int64
	changes []change
}

// change is one write of a document. before is nil for a creation, after for a deletion.
type change struct{ before, after *record }

func (c *change) path() string {
	if c.after != nil {
		return c.after.path
	}
	return c.before.path
}

// size returns the memory that the change keeps from being freed.
func (c *change) size() int64 {
	if c.before == nil {
		return recordOverhead
	}
	return c.before.size()
}

// state has all records at a revision.
type state struct {
	number  int64
	records *btree.BTreeG[*record]
}

// stateEvery is the number of changes between two states. A read undoes about as many at most.
const stateEvery = 1024

// append adds a revision. now has the records after it.
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

// halve compacts the older half of the history, by bytes.
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

// compact drops changes and states that only reads before a revision need.
func (h *history) compact(number int64) {
	h.compacted = number
	n := h.from(number)
	for i := range h.revisions[:n] {
		h.size -= h.revisions[i].size()
	}
	h.revisions = slices.Clone(h.revisions[n:])
	h.states = slices.Clone(h.states[h.stateFrom(number):])
}

// from returns the index of the first revision not before a number.
func (h *history) from(number int64) int {
	return sort.Search(len(h.revisions), func(i int) bool { return h.revisions[i].number >= number })
}

// stateFrom returns the index of the first state not before a revision.
func (h *history) stateFrom(number int64) int {
	return sort.Search(len(h.states), func(i int) bool { return h.states[i].number >= number })
}

// past returns a new tree with the records at a revision. Only records below the prefix are correct. It copies the next
// later state, or the present one, and undoes the changes in between.
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

// rangePast reads records at a past revision.
func (b *Backend) rangePast(ctx context.Context, r storage.RangeRequest) (*storage.RangeResult, error) {
	b.mu.Lock() // not RLock: copying a tree writes to it
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

// read returns the records of a tree that a request selects.
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
