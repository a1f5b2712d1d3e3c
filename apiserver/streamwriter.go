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
	control    *http.ResponseController
	connection *conn.Conn
	stalled    *conn.Stall
	buf        []byte               // nil between batches: most watches are idle most of the time
	sending    func() (sent func()) // around each write of what the stream begins with; nil afterwards
	err        error                // of the first write that failed: nobody reads any more
}

// newStreamWriter returns the writer of a stream that is cut off when a write takes longer than limit. The caller stops
// stalled.
func newStreamWriter(w http.ResponseWriter, r *http.Request, limit time.Duration) *streamWriter {
	control := http.NewResponseController(w)
	return &streamWriter{to: w, control: control, connection: conn.Of(r), stalled: conn.EndStalled(control, limit)}
}

// add encodes a batch of events, and sends some of a long one.
func (w *streamWriter) add(ctx context.Context, r *request, frames *encoding.Framer, events []storage.Event,
	bookmarks bool) error {
	events, err := frames.Converted(ctx, events)
	for i := 0; i < len(events) && err == nil && w.err == nil; i++ {
		if events[i].Type == storage.Bookmark && !bookmarks {
			continue // it ends the initial events of a client that wants no bookmarks
		}
		if err = w.append(ctx, r, frames, &events[i]); len(w.buf) > streamChunk && err == nil {
			_ = w.send() // w.err has it
			r.memory.Close()
		}
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // which is why, whatever else failed because of it
	}
	return err
}

// append encodes an event. The memory for a large one is charged until it has been sent.
func (w *streamWriter) append(ctx context.Context, r *request, frames *encoding.Framer, e *storage.Event) (err error) {
	if e.Object != nil {
		if err := r.charge(frames.ObjectMemory(len(e.Object.JSON))); err != nil {
			return err
		}
	}
	w.buf, err = frames.Append(ctx, w.buffer(), e)
	return err
}

// send sends what has been added.
func (w *streamWriter) send() error {
	if w.sending != nil {
		defer w.sending()()
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

// rest gives back what was taken for a batch that has been sent.
func (w *streamWriter) rest(r *request) {
	r.memory.Close()
	if w.buf != nil && cap(w.buf) <= 2*streamChunk {
		buf := w.buf
		streamBuffers.Put(&buf)
	}
	w.buf = nil
}
