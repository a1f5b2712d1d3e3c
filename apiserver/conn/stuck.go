package conn

import (
	"context"
	"time"
)

// A client that does not read from its connection at all stops the server's writes to it. net/http bounds them by
// deadlines of requests, which with HTTP/2 have no effect then: what ends a stream is a frame, and it waits behind the
// one that is stuck. So the connection itself is cut off.

// write writes to the network.
func (c *Conn) write(b []byte) (int, error) {
	c.writes.Add(1)
	defer c.writes.Add(1)
	return c.Conn.Write(b)
}

// cutOff makes the write in progress fail, and all later ones.
func (c *Conn) cutOff() { _ = c.Conn.SetWriteDeadline(time.Unix(1, 0)) }

// EndStuck cuts off connections of which a single write takes longer than limit, after at most twice that, until ctx
// ends.
func (l *Listener) EndStuck(ctx context.Context, limit time.Duration) {
	look := time.NewTicker(limit)
	defer look.Stop()
	before := map[*Conn]uint64{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		for c, count := range before {
			if c.writes.Load() == count {
				c.cutOff()
			}
		}
		before = l.writing()
	}
}

// writing are the connections that are being written to, with their counts of writes.
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

// stuckFor is how long a write takes that is not only in progress by chance.
const stuckFor = 50 * time.Millisecond

// EndIfStuck cuts the connection off soon if nothing can be written to it now. A nil *Conn is left alone.
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
