package apiserver

import (
	"net/http"

	"github.com/coxswain-dev/coxswain/apiserver/conn"
)

// streamMemory is about how many bytes an HTTP/2 request takes from its first moment on, beside its header: its
// goroutine, and what net/http keeps.
const streamMemory = 48 << 10

// leastStreamMemory is the least that the HTTP/2 requests of a process without a memory limit may take together.
const leastStreamMemory = 64 << 20

// streamShare is the part of the machine's memory that they may take.
const streamShare = 16

// countedStream is a request of an HTTP/2 connection. A connection may have very many, each of which takes memory
// before it is known who sent it. All together may take a quarter of what the budget of requests has: more make the
// garbage collector keep the processors from everybody. Without a budget they may take Limits.StreamMemory. Beyond
// that, clients and their connections may have a fair share, so that one with few requests need not mind what
// others do.
type countedStream struct {
	s    *Server
	on   *conn.Conn
	size int64 // 0 if it is not counted
}

// mostStreams is how many bytes HTTP/2 requests may take, 0 for any number.
func (s *Server) mostStreams() int64 {
	if s.memory.Limited() {
		return s.memory.Size() / 4
	}
	return max(s.Limits.StreamMemory, 0)
}

// enter counts a request. It is false if there is no memory for it. leave must follow in any case.
func (s *Server) enter(r *http.Request) (countedStream, bool) {
	most := s.mostStreams()
	if most == 0 || r.ProtoMajor < 2 {
		return countedStream{}, true
	}
	on := conn.Below(r)
	if on == nil {
		return countedStream{}, true
	}
	c := countedStream{s, on, streamMemory}
	for name, values := range r.Header {
		c.size += int64(len(name))
		for _, value := range values {
			c.size += int64(len(value))
		}
	}
	c.size += int64(len(r.RequestURI))
	on.Hold(c.size)
	ok := s.streams.Add(c.size) <= most || on.WithinShare(most)
	if !ok {
		s.memory.Refuse()
	}
	return c, ok
}

// leave counts the request no longer. It may be called twice.
func (c *countedStream) leave() {
	if c.size > 0 {
		c.s.streams.Add(-c.size)
		c.on.Hold(-c.size)
		c.size = 0
	}
}
