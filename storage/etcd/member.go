package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// A machine that hangs keeps its connections, because its kernel still acknowledges sent data. gRPC's keep-alives
// detect this after 13 seconds, and until then each request to that member waits. If etcd has several members, each
// connection is therefore watched. If data was sent and no response arrives for a moment, a second connection probes
// the member. If the probe fails, the first connection is closed. A member that is only slow, or has no leader, still
// accepts the probe and is kept. In total, a member that hangs is abandoned within 1.5 seconds.

const (
	// probeAfter is how long a member may be silent before it is probed. A probe costs the member a TLS handshake.
	probeAfter = 250 * time.Millisecond
	// probeTimeout is how long a member may take to accept the probe before its connection is closed.
	probeTimeout = time.Second
)

// manyMembers returns the dial options that abandon a member that hangs. It returns none if there is only one member.
func manyMembers(servers []string, secure *tls.Config) []grpc.DialOption {
	for _, server := range servers {
		if strings.HasPrefix(server, "unix") {
			return nil // on this machine
		}
		if len(servers) > 1 && secure == nil && strings.HasPrefix(server, "https://") {
			secure = &tls.Config{MinVersion: tls.VersionTLS12} // with the system's CAs, as the client itself
		}
	}
	if len(servers) < 2 {
		return nil
	}
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		m := &memberConn{Conn: conn, address: address, secure: secure, closed: make(chan struct{})}
		go m.watch()
		return m, nil
	})}
}

// memberConn is a connection to a member of etcd, below TLS. Closing it ends the goroutine of watch.
type memberConn struct {
	net.Conn
	address string
	secure  *tls.Config // nil for a connection without TLS
	// waiting is the time of the first write since the last read, in nanoseconds since 1970; 0 if there was no write.
	waiting atomic.Int64
	once    sync.Once
	closed  chan struct{}
}

func (m *memberConn) Write(b []byte) (int, error) {
	if m.waiting.Load() == 0 {
		m.waiting.CompareAndSwap(0, time.Now().UnixNano())
	}
	return m.Conn.Write(b)
}

func (m *memberConn) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if n > 0 {
		m.waiting.Store(0)
	}
	return n, err
}

func (m *memberConn) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Conn.Close()
}

// watch closes the connection when the member is silent and a probe fails.
func (m *memberConn) watch() {
	ticker := time.NewTicker(probeAfter)
	defer ticker.Stop()
	for {
		select {
		case <-m.closed:
			return
		case <-ticker.C:
		}
		since := m.waiting.Load()
		if since == 0 || time.Since(time.Unix(0, since)) < probeAfter {
			continue
		}
		if m.probe() != nil {
			_ = m.Close() // gRPC fails the requests of this connection and uses other members
			return
		}
		m.waiting.CompareAndSwap(since, 0) // the member is alive: no response was due yet
	}
}

// http2Preface starts a connection of HTTP/2. A server answers with its settings.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// probe opens a second connection, up to the end of the TLS handshake, or without TLS up to the server's first byte.
func (m *memberConn) probe() error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", m.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if m.secure != nil {
		config := m.secure.Clone()
		config.NextProtos = []string{"h2"}
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(m.address)
		}
		return m.handshake(ctx, tls.Client(conn, config))
	}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := conn.Write([]byte(http2Preface)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// handshake returns an error where the member did not take part: one that rejects a certificate is no worse than the
// connection that is probed.
func (m *memberConn) handshake(ctx context.Context, conn *tls.Conn) error {
	err := conn.HandshakeContext(ctx)
	var timeout net.Error
	if err == nil || !errors.As(err, &timeout) && !errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}
