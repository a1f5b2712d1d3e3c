package listener

import (
	"errors"
	"net"
	"sync"
)

// Group is a listener that accepts the connections of several listeners. Its methods are safe for concurrent use. Close
// waits until no goroutine of the group is left.
type Group struct {
	first    net.Listener
	accepted chan accepted
	closed   chan struct{} // closed by Close
	running  sync.WaitGroup

	mu  sync.Mutex // guards all, and whether closed is closed
	all []net.Listener
}

// accepted is the result of one listener's Accept.
type accepted struct {
	conn net.Conn
	err  error
}

// NewGroup returns a group with one listener, which it owns. The group has the listener's address and its errors.
func NewGroup(first net.Listener) *Group {
	g := &Group{first: first, accepted: make(chan accepted), closed: make(chan struct{})}
	g.Add(first)
	return g
}

// Add adds a listener, which the group owns from then on, and closes it if the group is closed. If the listener fails
// later, the others continue.
func (g *Group) Add(ln net.Listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isClosed() {
		_ = ln.Close()
		return
	}
	g.all = append(g.all, ln)
	g.running.Go(func() { g.accept(ln) })
}

// accept passes on the connections of a listener, and its temporary errors, such as too many open files: the caller of
// the group's Accept waits before it calls again.
func (g *Group) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		var again interface{ Temporary() bool }
		lasting := err != nil && !(errors.As(err, &again) && again.Temporary())
		if lasting && ln != g.first {
			return
		}
		select {
		case g.accepted <- accepted{conn, err}:
		case <-g.closed:
			if conn != nil {
				_ = conn.Close()
			}
			return
		}
		if lasting {
			return
		}
	}
}

// Accept implements net.Listener.
func (g *Group) Accept() (net.Conn, error) {
	select {
	case a := <-g.accepted:
		return a.conn, a.err
	case <-g.closed:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener. It returns the address of the first listener.
func (g *Group) Addr() net.Addr { return g.first.Addr() }

// Close implements net.Listener. It closes all listeners.
func (g *Group) Close() error {
	g.mu.Lock()
	if g.isClosed() {
		g.mu.Unlock()
		return net.ErrClosed
	}
	close(g.closed)
	var failures []error
	for _, ln := range g.all {
		failures = append(failures, ln.Close())
	}
	g.mu.Unlock()
	g.running.Wait()
	return errors.Join(failures...)
}

func (g *Group) isClosed() bool {
	select {
	case <-g.closed:
		return true
	default:
		return false
	}
}
