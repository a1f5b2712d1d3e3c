package conn

import (
	"net/netip"
	"sync/atomic"
)

// A connection of HTTP/2 may have very many requests, which the server counts by the bytes that they take. When all of
// them take too much, requests within a fair share go on: all clients have equal shares, and so have the connections of
// one client within its share.

// client is a client with open connections.
type client struct {
	connections int64        // guarded by Listener.mu
	taken       atomic.Int64 // bytes that the requests on its connections take
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
	if _, open := l.open[c]; !open {
		return
	}
	delete(l.open, c)
	if c.client.connections--; c.client.connections == 0 {
		delete(l.clients, c.address)
	}
}

// Hold adds n to the bytes that requests on the connection take. A negative n subtracts.
func (c *Conn) Hold(n int64) {
	c.taken.Add(n)
	c.client.taken.Add(n)
}

// WithinShare reports whether the connection takes no more than its fair share of limit bytes, or its client no more
// than the client's share. In the second case all connections of the client may go on. The counts may change
// meanwhile: the result is an estimate.
func (c *Conn) WithinShare(limit int64) bool {
	c.listener.mu.Lock()
	clients, connections := int64(len(c.listener.clients)), c.client.connections
	c.listener.mu.Unlock()
	share := limit / max(clients, 1)
	return c.client.taken.Load() <= share || c.taken.Load() <= share/max(connections, 1)
}
