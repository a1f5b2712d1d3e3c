package conn

import (
	"context"
	"time"
)

// A client that does not read from its connection at all stops the server's writes to it. net/http bounds them by
// deadlines of requests. With HTTP/2, these have no effect then: a stream is ended by a frame, and the frame waits
// behind the one that is stuck. So the connection itself is cut off.
//
// A write is identified by the count in Conn.writes while it is in progress. A later look that finds the same odd count
// has found the same write.

// write writes to the network. c.mu is held.
func (c *Conn) write(b []byte) (int, error) {
	c.writes.Add(1)
	defer c.writes.Add(1)
	return c.Conn.Write(b)
}

// cutOff makes the write in progress fail, and all later ones. It does not take c.mu, which the write holds.
func (c *Conn) cutOff() { _ = c.Conn.SetWriteDeadline(time.Unix(1, 0)) }

// EndStuck cuts off connections with a write that takes longer than limit, after at most twice that, until ctx ends.
func (l *Listener) EndStuck(ctx context.Context, limit time.Duration) {
	ticker := time.NewTicker(limit)
	defer ticker.Stop()
	before := map[*Conn]uint64{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for c, count := range before {
			if c.writes.Load() == count {
				c.cutOff()
			}
		}
		before = l.writing()
	}
}

// writing returns the connections with a write in progress, with their counts of writes.
func (l *Listener) writing() map[*Conn]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[*Conn]uint64{}
	for c := range l.open {
		if count := c.writes.Load(); count%2 == 1 {
			all[c] = count
		}
	}
	return all
}

// stuckFor is a duration for a write that is stuck, and not only in progress by chance.
const stuckFor = 50 * time.Millisecond

// EndIfStuck cuts the connection off soon if the write in progress is stuck. It does not wait. A nil *Conn is ignored.
func (c *Conn) EndIfStuck() {
	if c == nil {
		return
	}
	count := c.writes.Load()
	if count%2 == 0 {
		return
	}
	time.AfterFunc(stuckFor, func() {
		if c.writes.Load() == count {
			c.cutOff()
		}
	})
}
