package responsewriter

import (
	"github.com/coxswain-dev/coxswain/apiserver/conn"
)

// streamMemory is about how many bytes an HTTP/2 request takes from its first moment on, beside its header: its
// goroutine, and the state that net/http keeps.
const streamMemory = 48 << 10

// countedStream is a request of an HTTP/2 connection, which is a stream in the terms of RFC 9113. A connection may have
// very many, and each takes memory before its user is known. Together they may take a quarter of the budget: more of
// them would keep the garbage collector, and so the processors, from all other work. Without a budget they may take
// Options.StreamMemory.
//
// Beyond that, clients and their connections may have a fair share: a client with few requests is served even while
// others have too many.
type countedStream struct {
	limiter *Limiter
	on      *conn.Conn
	size    int64 // bytes; 0 if the stream is not counted, or no longer
}

// streamLimit returns how many bytes HTTP/2 requests may take, 0 for any number.
func (l *Limiter) streamLimit() int64 {
	if l.Memory.Limited() {
		return l.Memory.Size() / 4
	}
	return max(l.streamMemory, 0)
}

// countStream counts a request of HTTP/2. It returns false if there is no memory for the request, which is counted as
// well until stream.leave.
func (w *Writer) countStream() bool {
	limit := w.limiter.streamLimit()
	if limit == 0 || w.request.ProtoMajor < 2 {
		return true
	}
	on := conn.Below(w.request)
	if on == nil {
		return true
	}
	w.stream = countedStream{limiter: w.limiter, on: on, size: streamMemory + int64(len(w.request.RequestURI))}
	for name, values := range w.request.Header {
		w.stream.size += int64(len(name))
		for _, value := range values {
			w.stream.size += int64(len(value))
		}
	}
	on.Hold(w.stream.size)
	if w.limiter.streams.Add(w.stream.size) <= limit || on.WithinShare(limit) {
		return true
	}
	w.limiter.Memory.CountRejection()
	return false
}

// leave ends the count. It may be called twice.
func (s *countedStream) leave() {
	if s.size > 0 {
		s.limiter.streams.Add(-s.size)
		s.on.Hold(-s.size)
		s.size = 0
	}
}
