package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coxswain-dev/coxswain/storage"
)

// The limits of one transaction are etcd's.
const (
	maxWrites  = 128
	maxRequest = 3 << 19
)

// Commit applies all writes at one new revision, or none.
func (b *Backend) Commit(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
	paths, err := pathsOf(writes)
	if err != nil {
		return nil, err
	}
	records := b.recordsOf(writes, paths)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	outcome := &storage.Outcome{Revision: b.now.Load(), Before: make([]storage.KV, len(writes))}
	found := make([]*record, len(writes))
	outcome.Applied = true
	for i, w := range writes {
		found[i] = b.get(paths[i])
		outcome.Applied = outcome.Applied && (w.Expect == storage.AnyRevision || found[i].kv().Revision == w.Expect)
	}
	if !outcome.Applied {
		for i, r := range found {
			outcome.Before[i] = r.kv()
		}
		return outcome, nil
	}
	if size := b.size + b.history.size; size > b.quota && slices.ContainsFunc(records, isRecord) {
		return nil, fmt.Errorf("%w: %d bytes, of a quota of %d", storage.ErrNoSpace, size, b.quota)
	}
	changes := make([]change, 0, len(writes))
	for i, w := range writes {
		switch {
		case w.Op == storage.Check:
		case w.Op != storage.Delete:
			if w.KeepTTL && found[i] != nil {
				records[i].expires = found[i].expires
			}
			changes = append(changes, change{before: found[i], after: records[i]})
		default:
			if before := b.get(paths[i]); before != nil {
				outcome.Before[i] = before.kv()
				changes = append(changes, change{before: before})
				b.present.Delete(before) // a second deletion of the path in this transaction finds no document
			}
		}
	}
	if len(changes) > 0 {
		outcome.Revision++
		b.apply(outcome.Revision, changes)
	}
	return outcome, nil
}

func isRecord(r *record) bool { return r != nil }

// pathsOf returns the paths of writes, and rejects the transactions that etcd rejects.
func pathsOf(writes []storage.Write) ([]string, error) {
	if len(writes) > maxWrites {
		return nil, fmt.Errorf("%w: %d writes", storage.ErrTooLarge, len(writes))
	}
	paths := make([]string, len(writes))
	size := 0
	for i, w := range writes {
		paths[i] = w.Key.String()
		size += 3*len(paths[i]) + len(w.Value) // the path is in the compare, the write and the alternative read
		for j, other := range writes[:i] {
			if paths[i] == paths[j] && (puts(w) && other.Op != storage.Check || puts(other) && w.Op != storage.Check) {
				return nil, errors.New("the write was refused: it has a key twice: " + paths[i])
			}
		}
	}
	if size > maxRequest {
		return nil, fmt.Errorf("%w: %d bytes", storage.ErrTooLarge, size)
	}
	return paths, nil
}

// puts reports whether a write stores a document.
func puts(w storage.Write) bool { return w.Op == storage.Create || w.Op == storage.Update }

// recordsOf returns a record for each write, without revision and birth, or nil if the write stores no document.
func (b *Backend) recordsOf(writes []storage.Write, paths []string) []*record {
	records := make([]*record, len(writes))
	for i, w := range writes {
		if !puts(w) {
			continue
		}
		records[i] = &record{path: paths[i], value: append([]byte{}, w.Value...)}
		if w.TTL > 0 {
			records[i].expires = b.clock.Now().Add((w.TTL + time.Second - 1).Truncate(time.Second))
		}
	}
	return records
}

// apply applies changes at a new revision, and sets revision and birth of their new records. The caller holds the lock.
func (b *Backend) apply(revision int64, changes []change) {
	for _, c := range changes {
		if c.before != nil {
			b.size -= c.before.size()
			if !c.before.expires.IsZero() {
				b.expiring.Delete(c.before)
			}
		}
		if c.after == nil {
			b.present.Delete(c.before)
			continue
		}
		c.after.revision = revision
		switch {
		case c.after.birth != 0: // the document is restored from an Image
		case c.before != nil:
			c.after.birth = c.before.birth
		default:
			c.after.birth = births.Add(1)
		}
		b.size += c.after.size()
		b.present.ReplaceOrInsert(c.after)
		if !c.after.expires.IsZero() {
			b.expiring.ReplaceOrInsert(c.after)
		}
	}
	b.history.append(revision, changes, b.present)
	b.now.Store(revision)
	b.awaitExpiry()
	for w := range b.watches {
		w.wake()
	}
}
