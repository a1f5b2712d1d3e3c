package apiserver

import (
	"net/http"

	"github.com/coxswain-dev/coxswain/apiserver/conn"
)

// streamMemory is about how many bytes an HTTP/2 request takes from its first moment on, beside its header: its
// goroutine, and what net/http keeps.
const streamMemory = 48 << 10

// countedStream is a request of an HTTP/2 connection, on a process with little memory. A connection may have very many,
// each of which takes memory before it is known who sent it. All together may take a quarter of what the budget of
// requests has: more make the garbage collector keep the processors from everybody. Beyond that, connections may have a
// fair share, so that one with few requests need not mind what others do.
type countedStream struct {
	s    *Server
	on   *conn.Conn
	size int64 // 0 if it is not counted
}

// enter counts a request. It is false if there is no memory for it. leave must follow in any case.
func (s *Server) enter(r *http.Request) (countedStream, bool) {
	most := s.memory.Size() / 4
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
	all, its := s.streams.Add(c.size), on.Held.Add(c.size)
	ok := all <= most || its <= most/int64(on.Neighbours())
	if !ok {
		s.memory.Refuse()
	}
	return c, ok
}

// leave counts the request no longer. It may be called twice.
func (c *countedStream) leave() {
	if c.size > 0 {
		c.s.streams.Add(-c.size)
		c.on.Held.Add(-c.size)
		c.size = 0
	}
}
