package listener

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ask connects to an address and returns everything that it receives.
func ask(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	text, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(text)
}

// answer sends to each client the address that it has reached, until the listener is closed.
func answer(t *testing.T, ln net.Listener) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, conn.LocalAddr().String())
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-ended })
}

func TestLocal_AnswersAtEveryAddressOfTheMachine(t *testing.T) {
	t.Parallel()
	ln, err := Local(":0")
	require.NoError(t, err)
	answer(t, ln)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	asked := 0
	for _, a := range addresses {
		network, ok := a.(*net.IPNet)
		if !ok || network.IP.To4() == nil {
			continue
		}
		address := net.JoinHostPort(network.IP.String(), port)
		require.Equal(t, address, ask(t, address))
		asked++
	}
	require.Positive(t, asked)
}

// pretender is a connection with the given ends.
type pretender struct {
	net.Conn
	from, to string
}

func (p pretender) RemoteAddr() net.Addr { return tcp(p.from) }
func (p pretender) LocalAddr() net.Addr  { return tcp(p.to) }
func (p pretender) Close() error         { return nil }

func tcp(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }

// list is a listener that accepts the connections of a list.
type list struct {
	net.Listener
	conns []net.Conn
	err   error
}

func (l *list) Accept() (net.Conn, error) {
	if len(l.conns) == 0 {
		return nil, l.err
	}
	conn := l.conns[0]
	l.conns = l.conns[1:]
	return conn, nil
}

func (l *list) Close() error { return nil }

func TestLocal_ClosesConnectionsOfOtherMachines(t *testing.T) {
	t.Parallel()
	own := []net.Conn{pretender{from: "127.0.0.1", to: "127.244.0.1"}, pretender{from: "192.0.2.1", to: "192.0.2.1"},
		pretender{from: "::ffff:192.0.2.1", to: "192.0.2.1"}, pretender{from: "2001:db8::1", to: "2001:db8::1"}}
	others := []net.Conn{pretender{from: "192.0.2.2", to: "192.0.2.1"}, pretender{from: "10.244.0.5", to: "10.244.0.1"},
		pretender{from: "192.0.2.1", to: "10.244.0.1"}}
	ended := errors.New("no more")
	ln := local{&list{conns: append(append([]net.Conn{}, others...), append(own, others...)...), err: ended}}
	for _, want := range own {
		conn, err := ln.Accept()
		require.NoError(t, err)
		require.Equal(t, want, conn)
	}
	_, err := ln.Accept()
	require.ErrorIs(t, err, ended)
}

func TestGroup_AcceptsConnectionsOfAllListeners(t *testing.T) {
	t.Parallel()
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		return ln
	}
	first, second, late := listen(), listen(), listen()
	g := NewGroup(first)
	require.Equal(t, first.Addr(), g.Addr())
	g.Add(second)
	answer(t, g)
	for _, ln := range []net.Listener{first, second, first} {
		require.Equal(t, ln.Addr().String(), ask(t, ln.Addr().String()))
	}
	require.NoError(t, second.Close())
	require.Equal(t, first.Addr().String(), ask(t, first.Addr().String()), "the others continue")
	require.ErrorIs(t, g.Close(), net.ErrClosed, "of the second listener")
	g.Add(late)
	for _, ln := range []net.Listener{first, second, late} {
		_, err := net.DialTimeout("tcp", ln.Addr().String(), time.Second)
		require.Error(t, err, "the group has closed it")
	}
	require.ErrorIs(t, g.Close(), net.ErrClosed)
}

// full is the error of a process with too many open files.
type full struct{}

func (full) Error() string   { return "too many open files" }
func (full) Temporary() bool { return true }

// crowded is a listener that fails for a while.
type crowded struct {
	net.Listener
	failures int
}

func (c *crowded) Accept() (net.Conn, error) {
	if c.failures > 0 {
		c.failures--
		return nil, full{}
	}
	return c.Listener.Accept()
}

func TestGroup_ReportsErrorsAfterWhichItGoesOn(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := NewGroup(&crowded{inner, 2})
	for range 2 {
		_, err := g.Accept()
		require.ErrorIs(t, err, full{})
	}
	answer(t, g)
	require.Equal(t, inner.Addr().String(), ask(t, inner.Addr().String()))

	broken := errors.New("broken")
	g = NewGroup(&list{err: broken})
	_, err = g.Accept()
	require.ErrorIs(t, err, broken, "the first listener's end is the group's")
	require.NoError(t, g.Close())
}
