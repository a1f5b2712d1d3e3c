package audit

import (
	"bytes"
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxBuffered limits the total size of the events that wait or are being written, regardless of their number.
const maxBuffered = 64 << 20

// maxSpare limits the size of a buffer that is reused for another batch.
const maxSpare = 1 << 20

// queue collects events in batches. Its writers write a batch when it is full or its first event has waited for
// MaxWait. put never blocks: it fails if the queue is full.
type queue struct {
	BatchOptions
	maxBatch int64 // in bytes
	write    func(ctx context.Context, lines []byte, events int) bool
	limit    *rate.Limiter // nil for no limit

	stop    context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{}

	mu     sync.Mutex
	wait   []batch
	spare  []byte // a buffer for reuse
	events int    // waiting
	bytes  int    // waiting or being written
	closed bool
}

type batch struct {
	lines  []byte
	events int
	begun  time.Time
}

// newQueue starts a queue with the given number of writers.
func newQueue(o BatchOptions, maxBatch int64, writers int,
	write func(ctx context.Context, lines []byte, events int) bool) *queue {
	ctx, stop := context.WithCancel(context.Background())
	q := &queue{BatchOptions: o, maxBatch: maxBatch, write: write, stop: stop, wake: make(chan struct{}, 1)}
	if o.ThrottleEnable {
		q.limit = rate.NewLimiter(rate.Limit(o.ThrottleQPS), o.ThrottleBurst)
	}
	for range writers {
		q.running.Go(func() { q.run(ctx) })
	}
	return q
}

// put adds a copy of a line.
func (q *queue) put(line []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return errClosed
	case q.events >= q.BufferSize || q.bytes+len(line) > maxBuffered && q.bytes > 0:
		return errFull
	}
	last := len(q.wait) - 1
	if last < 0 || q.full(&q.wait[last]) || int64(len(q.wait[last].lines)+len(line)) > q.maxBatch {
		q.wait = append(q.wait, batch{lines: q.spare[:0], begun: time.Now()})
		q.spare = nil
		last++
	}
	b := &q.wait[last]
	b.lines = append(b.lines, line...)
	b.events++
	q.events++
	q.bytes += len(line)
	if b.events == 1 || q.full(b) {
		q.signal()
	}
	return nil
}

func (q *queue) full(b *batch) bool { return b.events >= q.MaxSize }

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run writes batches until the queue is closed and empty.
func (q *queue) run(ctx context.Context) {
	for {
		b, ok := q.next()
		if !ok {
			q.signal() // wakes the other writers, so that they end too
			return
		}
		if q.limit != nil {
			_ = q.limit.Wait(ctx) // it fails when ctx ends
		}
		q.write(ctx, b.lines, b.events)
		q.mu.Lock()
		q.bytes -= len(b.lines)
		if cap(b.lines) <= maxSpare {
			q.spare = b.lines
		}
		q.mu.Unlock()
	}
}

// next waits for a batch that is ready to be written. It returns false if there will be none.
func (q *queue) next() (batch, bool) {
	for {
		b, due, state := q.take()
		switch state {
		case taken:
			return b, true
		case ended:
			return b, false
		case idle:
			<-q.wake
			continue
		}
		timer := time.NewTimer(due)
		select {
		case <-q.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// The states that queue.take returns.
const (
	idle = iota
	waiting
	taken
	ended
)

// take removes the first batch if it is ready to be written. Otherwise it returns the time until it is.
func (q *queue) take() (b batch, due time.Duration, state int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.wait) == 0 {
		if q.closed {
			return b, 0, ended
		}
		return b, 0, idle
	}
	first := &q.wait[0]
	if due = q.MaxWait - time.Since(first.begun); due > 0 && len(q.wait) == 1 && !q.full(first) && !q.closed {
		return b, due, waiting
	}
	b = *first
	q.wait[0] = batch{}
	q.wait = q.wait[1:]
	q.events -= b.events
	if len(q.wait) > 0 {
		q.signal() // for another writer
	}
	return b, 0, taken
}

// close writes the remaining events, for closingFor at most, and stops the writers.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
	late := time.AfterFunc(closingFor, q.stop)
	defer late.Stop()
	q.running.Wait()
	q.stop()
}

// items joins lines to the elements of a JSON array. It removes typeMeta from each line, since elements of a list
// have none.
func items(lines []byte) []byte {
	list := make([]byte, 0, len(lines))
	for line := range bytes.Lines(lines) {
		if len(list) > 0 {
			list = append(list, ',')
		}
		list = append(append(list, '{'), line[len(typeMeta):len(line)-1]...)
	}
	return list
}
