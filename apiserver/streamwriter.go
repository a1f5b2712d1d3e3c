package apiserver

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/coxswain-dev/coxswain/apiserver/conn"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// streamChunk is about how many bytes of events are held back before they are sent. A client that does not read has
// the server hold this much for its watch, and as much again below.
const streamChunk = 14 << 10

// streamWriter sends the events of a watch.
type streamWriter struct {
	to         http.ResponseWriter
	r          *request
	frames     *encoding.Framer
	bookmarks  bool // the client wants them
	control    *http.ResponseController
	connection *conn.Conn
	stalled    *conn.Stall
	buf        []byte // nil between batches: most watches are idle most of the time
	beginning  bool   // the stream sends what it begins with
	turn       turn   // of the beginning
	begunWith  int    // how many events
	kept       int64  // how many bytes of the budget are held between chunks
	err        error  // of the first write that failed: nobody reads any more
}

// newStreamWriter returns the writer of a stream that is cut off when a write takes longer than limit. The caller stops
// stalled.
func newStreamWriter(w http.ResponseWriter, r *request, frames *encoding.Framer, limit time.Duration) *streamWriter {
	control := http.NewResponseController(w)
	return &streamWriter{to: w, r: r, frames: frames, control: control, connection: conn.Of(r.Request),
		stalled: conn.EndStalled(control, limit)}
}

// begin takes what the beginning of a stream needs, and sends the head of the response.
func (w *streamWriter) begin(ctx context.Context) error {
	w.beginning = true
	if err := w.r.charge(beginningMemory); err != nil {
		return err
	}
	w.kept = w.r.memory.Held()
	if err := w.turn.take(ctx); err != nil {
		return err
	}
	w.turn.leave() // the client may take its time
	beginStream(w.to, w.frames)
	_ = w.control.Flush()
	return nil
}

// count notes how many events of the beginning have been sent.
func (w *streamWriter) count(n int) {
	w.begunWith += n
	w.turn.needed = w.turn.needed || w.begunWith >= longList && !w.r.res.WebhookConverted
}

// begun is called when all has been sent that the stream begins with.
func (w *streamWriter) begun() {
	w.turn.leave()
	w.beginning, w.turn.needed, w.kept = false, false, 0
	w.r.memory.Close()
	observed(w.to).stream.leave() // from now on it is counted as a watch
}

// next waits for events or, while the stream has something to begin with, returns what there is, which may be nothing.
func (w *streamWriter) next(ctx context.Context, watcher *storage.Watcher) ([]storage.Event, error) {
	if !w.beginning {
		return watcher.Next(ctx)
	}
	if err := w.turn.take(ctx); err != nil {
		return nil, err
	}
	return watcher.Poll()
}

// add encodes a batch of events, and sends some of a long one.
func (w *streamWriter) add(ctx context.Context, events []storage.Event) error {
	events, err := w.frames.Converted(ctx, events)
	for i := 0; i < len(events) && err == nil && w.err == nil; i++ {
		if events[i].Type == storage.Bookmark && !w.bookmarks {
			continue // it ends the initial events of a client that wants no bookmarks
		}
		if err = w.append(ctx, &events[i]); len(w.buf) <= streamChunk || err != nil {
			continue
		}
		if err = w.hold(ctx); err == nil && w.send() == nil { // otherwise w.err has it
			err = w.turn.take(ctx)
		}
	}
	if err == nil {
		err = w.hold(ctx)
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // which is why, whatever else failed because of it
	}
	return err
}

// append encodes an event. The memory for a large one is charged until it has been sent.
func (w *streamWriter) append(ctx context.Context, e *storage.Event) (err error) {
	if e.Object != nil {
		if err := w.charge(ctx, w.frames.ObjectMemory(len(e.Object.JSON))); err != nil {
			return err
		}
	}
	w.buf, err = w.frames.Append(ctx, w.buffer(), e)
	return err
}

// hold charges what has been added until it is sent, with as much again on its way, unless it is little.
func (w *streamWriter) hold(ctx context.Context) error {
	if w.beginning { // which is charged for it already
		return nil
	}
	return w.charge(ctx, 2*int64(len(w.buf)))
}

// charge charges bytes until the next chunk has been sent. Nothing waits for memory while it has a turn: others may
// have to have theirs to give memory back.
func (w *streamWriter) charge(ctx context.Context, n int64) error {
	if n <= freeMemory || w.r.memory.Try(n) {
		return nil
	}
	w.turn.leave()
	if err := w.r.charge(n); err != nil {
		return err
	}
	return w.turn.take(ctx)
}

// send sends what has been added.
func (w *streamWriter) send() error {
	w.turn.leave()
	if w.beginning {
		defer w.turn.s.sending(w.to)()
	}
	if w.err == nil {
		w.stalled.Begin()
		w.connection.Cork(conn.Stream)
		_, err := w.to.Write(w.buf)
		loan := observed(w.to).lend(len(w.buf)) // the write had one of its own
		w.err = errors.Join(err, w.control.Flush(), w.connection.Uncork())
		loan.Return()
		w.stalled.End()
	}
	w.buf = w.buf[:0]
	w.r.memory.Return(w.kept)
	return w.err
}

// streamBuffers are those of streams that are sending.
var streamBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// buffer returns what has been added so far.
func (w *streamWriter) buffer() []byte {
	if w.buf == nil {
		w.buf = *streamBuffers.Get().(*[]byte)
	}
	return w.buf
}

// rest gives back the buffer of a batch that has been sent.
func (w *streamWriter) rest() {
	if w.buf != nil && cap(w.buf) <= 2*streamChunk {
		buf := w.buf
		streamBuffers.Put(&buf)
	}
	w.buf = nil
}
