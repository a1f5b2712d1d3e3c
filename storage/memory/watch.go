package memory

import (
	"context"
	"fmt"
	"strings"

	"github.com/coxswain-dev/coxswain/storage"
)

// watch is a cursor in the history. Only its own goroutine moves it.
type watch struct {
	storage.FollowRequest
	next     int64         // the first revision that has not been delivered
	progress bool          // a progress report was requested; the backend's lock guards it
	awake    chan struct{} // holds at most one token; it does when there may be changes to deliver
}

// wake makes the watch look for changes. It does not block.
func (w *watch) wake() {
	select {
	case w.awake <- struct{}{}:
	default:
	}
}

// maxBatch is the number of changes that end a batch, at the end of the current revision.
const maxBatch = 1000

// Watch streams changes until ctx ends or the Backend is closed.
func (b *Backend) Watch(ctx context.Context, r storage.FollowRequest) <-chan storage.WatchBatch {
	batches := make(chan storage.WatchBatch)
	w := &watch{FollowRequest: r, next: r.From, awake: make(chan struct{}, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		close(batches)
		return batches
	}
	if w.next <= 0 {
		w.next = b.now.Load() + 1
	}
	b.watches[w] = struct{}{}
	b.running.Go(func() {
		defer close(batches)
		defer b.forget(w)
		b.deliver(ctx, w, batches)
	})
	return batches
}

func (b *Backend) forget(w *watch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.watches, w)
}

// deliver sends batches until the watch ends.
func (b *Backend) deliver(ctx context.Context, w *watch, batches chan<- storage.WatchBatch) {
	batch, pending := storage.WatchBatch{Revision: w.From - 1}, true // reports that the watch is open
	for {
		out := batches
		if !pending {
			out = nil
		}
		select {
		case out <- batch:
			if batch.Err != nil {
				return
			}
		case <-w.awoken(pending):
		case <-ctx.Done():
			return
		case <-b.done:
			return
		}
		batch, pending = b.batch(w)
	}
}

// awoken returns the channel that wakes the watch, or nil if a batch is pending.
func (w *watch) awoken(pending bool) <-chan struct{} {
	if pending {
		return nil
	}
	return w.awake
}

// batch returns the next batch and moves the cursor past it. It returns false if there is no batch.
func (b *Backend) batch(w *watch) (batch storage.WatchBatch, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &b.history
	if w.next < h.compacted {
		return storage.WatchBatch{Err: fmt.Errorf("%w: %d is compacted", storage.ErrExpired, w.next)}, true
	}
	for _, r := range h.revisions[h.from(w.next):] {
		for _, c := range r.changes {
			if strings.HasPrefix(c.path(), w.Prefix) {
				batch.Changes = append(batch.Changes, c.forWatcher(r.number))
				batch.Revision = r.number
			}
		}
		w.next = r.number + 1
		if len(batch.Changes) >= maxBatch {
			return batch, true
		}
	}
	if len(batch.Changes) > 0 {
		return batch, true
	}
	if w.progress {
		w.progress = false
		return storage.WatchBatch{Revision: b.now.Load()}, true
	}
	return storage.WatchBatch{}, false
}

// forWatcher converts the change for watchers.
func (c *change) forWatcher(revision int64) storage.Change {
	result := storage.Change{Path: c.path(), Revision: revision}
	if c.after != nil {
		result.Value = c.after.value
	}
	return result
}

// RequestProgress makes every watch report the current revision after it has delivered all changes up to it.
func (b *Backend) RequestProgress(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(ctx); err != nil {
		return err
	}
	for w := range b.watches {
		w.progress = true
		w.wake()
	}
	return nil
}
