package conn

import (
	"net/netip"
	"sync/atomic"
)

// A connection of HTTP/2 may have very many requests, which the server counts by the bytes that they take. When all of
// them take too much, whoever has few goes on: the clients have a fair share each, and so have the connections of a
// client within its share.

// client is one that has connections. Listener.mu guards connections.
type client struct {
	connections int64
	taken       atomic.Int64
}

// enter adds a connection of a client. l.mu is held.
func (l *Listener) enter(address netip.Prefix) *client {
	c := l.clients[address]
	if c == nil {
		c = &client{}
		l.clients[address] = c
	}
	c.connections++
	return c
}

// leave removes a connection. l.mu is held. It may be called twice.
func (l *Listener) leave(c *Conn) {
	if _, is := l.open[c]; !is {
		return
	}
	delete(l.open, c)
	if c.client.connections--; c.client.connections == 0 {
		delete(l.clients, c.address)
	}
}

// Hold adds n bytes to those that requests on the connection take, or takes them off if n is negative.
func (c *Conn) Hold(n int64) {
	c.taken.Add(n)
	c.client.taken.Add(n)
}

// WithinShare reports whether the connection holds no more than its fair share of so many bytes, or its client no more
// than the client's, all of whose connections may go on then.
func (c *Conn) WithinShare(most int64) bool {
	c.of.mu.Lock()
	clients, connections := int64(len(c.of.clients)), c.client.connections
	c.of.mu.Unlock()
	share := most / max(clients, 1)
	return c.client.taken.Load() <= share || c.taken.Load() <= share/max(connections, 1)
}
