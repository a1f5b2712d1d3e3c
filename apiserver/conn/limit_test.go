package conn

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// queued is a listener that accepts connections from the addresses in it.
type queued chan string

func (q queued) Accept() (net.Conn, error) {
	address, ok := <-q
	if !ok {
		return nil, net.ErrClosed
	}
	one, other := net.Pipe()
	_ = other.Close()
	return &addressed{one, net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), 1024))}, nil
}

func (q queued) Close() error   { return nil }
func (q queued) Addr() net.Addr { return &net.TCPAddr{} }

type addressed struct {
	net.Conn
	from net.Addr
}

func (a *addressed) RemoteAddr() net.Addr { return a.from }

func from(addresses ...string) queued {
	q := make(queued, len(addresses))
	for _, address := range addresses {
		q <- address
	}
	close(q)
	return q
}

// accepted returns the addresses of the connections that a listener accepts until its end.
func accepted(ln net.Listener) (all []string) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return all
		}
		all = append(all, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().String())
	}
}

// A client with an IPv6 network has 2^64 addresses in it.
func TestLimitPerClient_CountsAnIPv6NetworkAsOneClient(t *testing.T) {
	t.Parallel()
	ln := LimitPerClient(from("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1", "10.0.0.1",
		"::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2", "fe80::1%eth0", "fe80::2%eth1", "fe80::3%eth2"), 2,
		slog.New(slog.DiscardHandler))
	require.Equal(t, []string{"2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2",
		"fe80::1%eth0", "fe80::2%eth1"}, accepted(ln))
}

func TestLimitPerClient_LogsTheNumberOfRejectedConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		q := make(queued)
		ln := LimitPerClient(q, 1, slog.New(slog.NewTextHandler(&out, nil)))
		go accepted(ln)
		for range 1001 {
			q <- "10.0.0.1"
		}
		synctest.Wait()
		require.Equal(t, 1, strings.Count(out.String(), "\n"))
		require.Contains(t, out.String(), "client=10.0.0.1/32 limit=1 refused=1\n")
		q <- "2001:db8::1"
		q <- "2001:db8::2"
		time.Sleep(2 * reportEvery)
		synctest.Wait()
		require.Equal(t, 2, strings.Count(out.String(), "\n"), "of the last ones, too, and no line without any")
		require.Contains(t, out.String(), "client=2001:db8::/64 limit=1 refused=1000\n")
		close(q)
	})
}

func TestWithinShare_IsFairAmongClientsAndTheirConnections(t *testing.T) {
	t.Parallel()
	ln := NewListener(from("10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2"))
	var conns []*Conn
	for range 4 {
		c, err := ln.Accept()
		require.NoError(t, err)
		conns = append(conns, c.(*Conn))
	}
	many, few, modest, other := conns[0], conns[1], conns[2], conns[3]
	many.Hold(500)
	few.Hold(16)
	modest.Hold(17)
	other.Hold(50)
	require.False(t, many.WithinShare(100))
	require.True(t, few.WithinShare(100), "a third of a half")
	require.False(t, modest.WithinShare(100))
	require.True(t, other.WithinShare(100), "its client has a half")
	many.Hold(-500)
	require.True(t, modest.WithinShare(100))
	other.Hold(1)
	require.False(t, other.WithinShare(100))
	for range 2 {
		_ = many.Close()
		_ = few.Close()
		_ = modest.Close()
	}
	require.True(t, other.WithinShare(100), "it is alone")
	require.Len(t, ln.clients, 1)
	_ = other.Close()
	require.Empty(t, ln.clients)
}
