package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/miekg/dns"
	"k8s.io/utils/clock"
)

// Limits on clients.
const (
	// largestQuestion is the size of the receive buffer. A longer UDP packet is cut off and so malformed.
	largestQuestion = 4096
	// idleTimeout is how long a connection may wait for its next question (RFC 7766, 6.2.3).
	idleTimeout = 10 * time.Second
	// writeTimeout is how long a client may take to read an answer.
	writeTimeout = 5 * time.Second
	// pause is the delay after a socket error other than its close, such as a lack of file descriptors.
	pause = 20 * time.Millisecond
)

// server moves packets between the sockets and the handler. Questions that the handler answers immediately take no
// goroutine. Each other question takes one; forwards limits their number.
type server struct {
	handler     *handler
	log         *slog.Logger
	clock       clock.Clock
	forwards    *share // questions in progress to other servers
	connections *share

	running sync.WaitGroup
}

// run serves until ctx ends, and returns when all sockets and goroutines are closed.
func (s *server) run(ctx context.Context, sockets *Sockets) {
	for _, conn := range sockets.udp {
		for range min(4, runtime.GOMAXPROCS(0)) {
			s.running.Go(func() { s.serveUDP(ctx, conn) })
		}
	}
	for _, ln := range sockets.tcp {
		s.running.Go(func() { s.serveTCP(ctx, ln) })
	}
	<-ctx.Done()
	_ = sockets.Close()
	s.running.Wait()
}

// ended reports whether an error means that the socket is closed. For other errors it waits for a pause.
func (s *server) ended(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
		return true
	}
	s.log.Debug("failed to read a socket", "err", err)
	select {
	case <-ctx.Done():
		return true
	case <-s.clock.After(pause):
		return false
	}
}

func (s *server) serveUDP(ctx context.Context, conn *net.UDPConn) {
	buffer := make([]byte, largestQuestion)
	for {
		n, session, err := dns.ReadFromSessionUDP(conn, buffer)
		if err != nil {
			if s.ended(ctx, err) {
				return
			}
			continue
		}
		client := addressOf(session.RemoteAddr())
		reply, rest := s.handler.receive(buffer[:n], client, false)
		if rest != nil && !s.forwards.take(client) {
			reply, rest = s.handler.refuse(rest), nil
		}
		if rest == nil {
			send(conn, session, reply)
			continue
		}
		s.running.Go(func() {
			defer s.forwards.give(client)
			send(conn, session, s.handler.resolve(ctx, rest))
		})
	}
}

func send(conn *net.UDPConn, session *dns.SessionUDP, reply []byte) {
	if reply != nil {
		_, _ = dns.WriteToSessionUDP(conn, reply, session) // on failure the client asks again
	}
}

func addressOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

func (s *server) serveTCP(ctx context.Context, ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			if s.ended(ctx, err) {
				return
			}
			continue
		}
		client := addressOf(conn.RemoteAddr())
		if !s.connections.take(client) {
			_ = conn.Close()
			continue
		}
		s.running.Go(func() {
			defer s.connections.give(client)
			s.serveConn(ctx, conn, client)
		})
	}
}

// serveConn answers questions one after the other, in their order.
func (s *server) serveConn(ctx context.Context, conn net.Conn, client netip.Addr) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var length [2]byte
	var buffer []byte
	for {
		_ = conn.SetReadDeadline(deadline(idleTimeout))
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(length[:]))
		if n > largestQuestion {
			return
		}
		if buffer == nil {
			buffer = make([]byte, largestQuestion)
		}
		if _, err := io.ReadFull(conn, buffer[:n]); err != nil {
			return
		}
		reply := s.answer(ctx, buffer[:n], client)
		if reply == nil {
			return
		}
		_ = conn.SetWriteDeadline(deadline(writeTimeout))
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

func (s *server) answer(ctx context.Context, packet []byte, client netip.Addr) []byte {
	reply, rest := s.handler.receive(packet, client, true)
	if rest == nil {
		return reply
	}
	if !s.forwards.take(client) {
		return s.handler.refuse(rest)
	}
	defer s.forwards.give(client)
	return s.handler.resolve(ctx, rest)
}

// deadline returns a deadline for a socket, which always uses the real clock.
func deadline(d time.Duration) time.Time { return clock.RealClock{}.Now().Add(d) }
