package responsewriter

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/conn"
	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// streamChunk is about how many bytes of events are held back before they are sent. While its client does not read, a
// watch holds this much, and as much again in the cork of its connection.
const streamChunk = 14 << 10

// initialMemory is the reservation of a watch for its initial events, beside watchMemory: a batch of events, two
// encoded chunks, and buffers on their way to the client.
const initialMemory = 64 << 10

// Stream sends the events of a watch, batch by batch. At first it sends the initial events, with a reservation and, if
// there are many, in slots like a list. After EndInitial it is a watch at rest: it holds neither memory nor seats, and
// reserves memory for a large batch until it is sent.
//
// Begin comes first. A batch is any number of calls of Append and one of Flush. End may send one more event. Close
// follows in any case.
type Stream struct {
	w          *Writer
	to         http.ResponseWriter // w, or a ResponseWriter around it
	control    *http.ResponseController
	connection *conn.Conn // nil for HTTP/2: requests share its connections
	timeout    time.Duration
	stalled    *conn.Stall // nil before Begin
	// leaveUser ends the count of the user's watches.
	leaveUser func()

	// buf has the encoded events that have not been sent. It is nil between batches: most watches are idle most of the
	// time, and the few that send share buffers.
	buf []byte
	// err is the error of the first write that failed: the client has gone, and later events are dropped.
	err error

	initial bool // the initial events are being sent
	remote  bool // another server converts the events: no slot is held while this server waits for it
	events  int  // initial events that have been appended
	slot    slot
	// reserved is the part of the reservation that is kept between chunks: that of initial events, and 0 after them.
	reserved int64
}

// Stream returns a Stream that is sent by to, which is w or a ResponseWriter around it. A single write may take as long
// as timeout. The error rejects a watch that does not fit. Members of system:masters are never rejected.
func (w *Writer) Stream(ctx context.Context, to http.ResponseWriter, timeout time.Duration) (*Stream, error) {
	leaveUser, err := w.CountWatch(ctx)
	if err != nil {
		return nil, err
	}
	control := http.NewResponseController(to)
	s := &Stream{w: w, to: to, control: control, connection: conn.Of(w.request), timeout: timeout,
		leaveUser: leaveUser, slot: slot{w: w}}
	open, limit := w.limiter.watches.Add(1), w.memory.Size()
	if limit > 0 && open*watchMemory > limit && !authn.UserFrom(ctx).In(authn.GroupMasters) {
		s.Close()
		return nil, status.TooManyRequests()
	}
	return s, nil
}

// CountWatch counts a watch of the user in ctx until the function that it returns is called. The error rejects the
// watch of a user that has as many as one may have.
func (w *Writer) CountWatch(ctx context.Context) (leave func(), err error) {
	user := authn.UserFrom(ctx)
	if user.In(authn.GroupMasters) {
		return func() {}, nil
	}
	watches := &w.limiter.userWatches
	if !watches.Take(user.Name) {
		return nil, status.TooManyRequests()
	}
	return func() { watches.Leave(user.Name) }, nil
}

// BeginStream sends the head of a stream of a media type.
func BeginStream(to http.ResponseWriter, mediaType string) {
	to.Header().Set("Content-Type", mediaType)
	to.Header().Set("Cache-Control", "no-cache, private")
	to.WriteHeader(http.StatusOK)
}

// Begin waits until the initial events may be encoded, and sends the head of the response. objects is about the number
// of initial events, and remote means that another server converts them.
func (s *Stream) Begin(ctx context.Context, mediaType string, objects int, remote bool) error {
	s.initial, s.remote = true, remote
	s.slot.needed = objects >= LongList && !remote
	s.stalled = conn.EndStalled(s.control, s.timeout)
	if err := s.w.Reserve(ctx, initialMemory); err != nil {
		return err
	}
	s.reserved = s.w.memory.Reserved()
	if err := s.slot.acquire(ctx); err != nil {
		return err
	}
	s.slot.release() // the client may take its time
	BeginStream(s.to, mediaType)
	_ = s.control.Flush() // an error means that the client has gone, which ends ctx
	return nil
}

// Initial reports whether the initial events are being sent.
func (s *Stream) Initial() bool { return s.initial }

// BeginBatch waits for the slot of a batch of initial events, if they are many.
func (s *Stream) BeginBatch(ctx context.Context) error { return s.slot.acquire(ctx) }

// EndInitial ends the initial events. From now on the stream is counted as a watch alone, neither as a request with
// memory and seats nor as a stream of HTTP/2.
func (s *Stream) EndInitial() {
	s.slot.release()
	s.initial, s.slot.needed, s.reserved = false, false, 0
	s.w.memory.Close()
	s.w.stream.leave()
	s.w.ReleaseSeats()
}

// Append calls encode to append an event to the buffer, and sends a chunk once it is complete. The event takes memory
// bytes until it is sent. It returns the error of encode or of a reservation; that of a write is left to Flush. Once a
// write has failed it has no effect.
func (s *Stream) Append(ctx context.Context, memory int64, encode func(buf []byte) ([]byte, error)) error {
	if s.err != nil {
		return nil
	}
	if err := s.slot.reserve(ctx, memory); err != nil {
		return err
	}
	var err error
	if s.buf, err = encode(s.buffer()); err != nil {
		return err
	}
	if s.initial {
		s.events++
		s.slot.needed = s.slot.needed || s.events >= LongList && !s.remote
	}
	if len(s.buf) <= streamChunk {
		return nil
	}
	if err := s.reserveBuffer(ctx); err != nil || s.send() != nil {
		return err
	}
	return s.slot.acquire(ctx)
}

// Flush sends the rest of a batch. It returns the error of the first write that failed, in this call or before. If
// there is no memory for the batch, its events stay in the buffer for End.
func (s *Stream) Flush(ctx context.Context) error {
	if s.err == nil {
		if err := s.reserveBuffer(ctx); err != nil {
			return err
		}
	}
	err := s.send()
	s.recycle()
	return err
}

// End calls encode to append a last event, and sends the buffer. It waits neither for memory nor for a slot: the stream
// is over.
func (s *Stream) End(encode func(buf []byte) []byte) {
	if s.err == nil {
		s.buf = encode(s.buffer())
	}
	_ = s.send() // an error means that the client has gone
}

// reserveBuffer reserves memory for the buffer, and as much again for its bytes on their way, until they are sent. The
// reservation for initial events includes it.
func (s *Stream) reserveBuffer(ctx context.Context) error {
	if s.initial {
		return nil
	}
	return s.slot.reserve(ctx, 2*int64(len(s.buf)))
}

// send sends the buffer, in one system call if possible, and releases its reservation. The slot is released before the
// write: the client may take its time.
func (s *Stream) send() error {
	s.slot.release()
	if s.initial {
		defer s.w.guard()()
	}
	if s.err == nil {
		s.stalled.Begin()
		s.connection.Cork(conn.Stream)
		_, err := s.to.Write(s.buf) // which lends the reservation by itself
		timeout := s.w.startTimeout(len(s.buf))
		s.err = errors.Join(err, s.control.Flush(), s.connection.Uncork())
		timeout.Stop()
		s.stalled.End()
	}
	s.buf = s.buf[:0]
	s.w.memory.ReleaseTo(s.reserved)
	return s.err
}

// streamBuffers are the buffers of streams that are sending.
var streamBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// buffer returns the events that have been appended so far.
func (s *Stream) buffer() []byte {
	if s.buf == nil {
		s.buf = *streamBuffers.Get().(*[]byte)
	}
	return s.buf
}

// recycle lets other streams use the buffer, unless it has become large.
func (s *Stream) recycle() {
	if s.buf != nil && cap(s.buf) <= 2*streamChunk {
		buf := s.buf
		streamBuffers.Put(&buf)
	}
	s.buf = nil
}

// Close releases all that the stream holds. The request's memory and seats stay with the Writer.
func (s *Stream) Close() {
	s.slot.release()
	if s.stalled != nil {
		s.stalled.Stop()
	}
	s.w.limiter.watches.Add(-1)
	s.leaveUser()
}
