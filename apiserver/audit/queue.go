package audit

import (
	"bytes"
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxBuffered bounds the bytes of the events that wait and of those that are being written, whatever their number.
const maxBuffered = 64 << 20

// maxSpare is how large a buffer may be to be kept for another batch.
const maxSpare = 1 << 20

// queue buffers events in batches, and has each batch written when it is full or its time has come. It never blocks
// whoever adds an event.
type queue struct {
	BatchOptions
	maxBatch int64 // bytes
	write    func(ctx context.Context, lines []byte, events int) bool
	limit    *rate.Limiter // nil for none

	stop    context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{}

	mu     sync.Mutex
	wait   []batch
	spare  []byte // of a batch that was written
	events int    // that wait
	bytes  int    // that wait or are being written
	closed bool
}

type batch struct {
	lines  []byte
	events int
	begun  time.Time
}

// newQueue starts a queue with so many writers.
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
			q.signal() // the other writers end as well
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

// next waits for a batch that is to be written now. The result is false if there will be none.
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

// The results of queue.take.
const (
	idle = iota
	waiting
	taken
	ended
)

// take returns the first batch if it is to be written now, or else how long that will be.
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

// close has everything written that waits, and returns when it is, or when the time for that has passed.
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

// items makes lines the elements of a JSON array. Each line begins with typeMeta, which elements of a list have not.
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
