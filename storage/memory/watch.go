package memory

import (
	"context"
	"fmt"
	"strings"

	"github.com/coxswain-dev/coxswain/storage"
)

// watch is a cursor in the history. Its goroutine alone moves it.
type watch struct {
	storage.FollowRequest
	next     int64         // the first revision that has not been delivered
	progress bool          // a report was asked for; the backend's lock guards it
	awake    chan struct{} // holds a token when there may be something to deliver
}

func (w *watch) wake() {
	select {
	case w.awake <- struct{}{}:
	default:
	}
}

// maxBatch is how many changes a batch has before it ends with its revision.
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
func (b *Backend) deliver(ctx context.Context, w *watch, to chan<- storage.WatchBatch) {
	batch, some := storage.WatchBatch{Revision: w.From - 1}, true // the watch is open
	for {
		out := to
		if !some {
			out = nil
		}
		select {
		case out <- batch:
			if batch.Err != nil {
				return
			}
		case <-w.awoken(some):
		case <-ctx.Done():
			return
		case <-b.done:
			return
		}
		batch, some = b.batch(w)
	}
}

// awoken is what a watch sleeps on that has nothing to send.
func (w *watch) awoken(busy bool) <-chan struct{} {
	if busy {
		return nil
	}
	return w.awake
}

// batch returns what comes next, if there is something, and moves the cursor past it.
func (b *Backend) batch(w *watch) (batch storage.WatchBatch, some bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &b.history
	if w.next < h.compacted {
		return storage.WatchBatch{Err: fmt.Errorf("%w: %d is compacted", storage.ErrExpired, w.next)}, true
	}
	for _, r := range h.revisions[h.from(w.next):] {
		for _, c := range r.changes {
			if strings.HasPrefix(c.path(), w.Prefix) {
				batch.Changes = append(batch.Changes, c.told(r.number))
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

// told is a change as a watcher sees it.
func (c *change) told(revision int64) storage.Change {
	told := storage.Change{Path: c.path(), Revision: revision}
	if c.after != nil {
		told.Value = c.after.value
	}
	return told
}

// RequestProgress makes every watch report the revision once it has delivered everything before.
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
