//go:build e2e

package linearizability

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// wire is the network between one API server and one member of etcd. While cut, it silently drops all data, like a
// broken network. When repaired, it closes its old connections.
type wire struct {
	listener net.Listener
	to       string
	serving  sync.WaitGroup

	mu     sync.Mutex
	whole  chan struct{} // closed while the wire is whole
	closed bool
	open   map[net.Conn]bool
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	target, err := url.Parse(to)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{listener: l, to: target.Host, whole: make(chan struct{}), open: map[net.Conn]bool{}}
	close(w.whole)
	w.serving.Go(w.accept)
	t.Cleanup(w.close)
	return w
}

func (w *wire) url() string { return "http://" + w.listener.Addr().String() }

func (w *wire) accept() {
	for {
		near, err := w.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", w.to)
		if err != nil {
			near.Close()
			continue
		}
		if !w.track(near, far) {
			return
		}
		w.serving.Go(func() { w.carry(near, far) })
		w.serving.Go(func() { w.carry(far, near) })
	}
}

// track records connections, which close with the wire. It returns false if the wire is already closed.
func (w *wire) track(conns ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range conns {
		if w.closed {
			c.Close()
			continue
		}
		w.open[c] = true
	}
	return !w.closed
}

func (w *wire) carry(from, to net.Conn) {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, from)
		from.Close()
		to.Close()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		w.mu.Lock()
		whole := w.whole
		w.mu.Unlock()
		select {
		case <-whole:
		default:
			// Data in transit when the wire breaks is lost.
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.whole = make(chan struct{})
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.whole)
	for c := range w.open {
		c.Close()
	}
}

func (w *wire) close() {
	w.listener.Close()
	w.mu.Lock()
	w.closed = true
	for c := range w.open {
		c.Close()
	}
	w.mu.Unlock()
	w.serving.Wait()
}
