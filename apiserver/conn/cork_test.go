package conn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// sink records each write.
type sink struct {
	net.Conn
	writes [][]byte
	err    error
}

func (s *sink) Write(b []byte) (int, error) {
	s.writes = append(s.writes, bytes.Clone(b))
	return len(b), s.err
}

func TestCork_CombinesWrites(t *testing.T) {
	t.Parallel()
	below := &sink{}
	c := &Conn{Conn: below}
	write := func(b string) {
		n, err := c.Write([]byte(b))
		require.NoError(t, err)
		require.Equal(t, len(b), n)
	}
	write("at once")
	c.Cork(Answer)
	write("a")
	c.Cork(Answer) // is corked already
	write("b")
	require.Len(t, below.writes, 1)
	require.NoError(t, c.Uncork())
	require.NoError(t, c.Uncork())
	write("c")
	require.Equal(t, [][]byte{[]byte("at once"), []byte("ab"), []byte("c")}, below.writes)

	below.writes = nil
	c.Cork(Answer)
	half := string(bytes.Repeat([]byte("x"), Answer/2+1))
	write(half)
	write(half)
	write(half + half)
	write("end")
	require.NoError(t, c.Uncork())
	require.Equal(t, []int{len(half), len(half), 2 * len(half), 3}, lengths(below.writes),
		"at most Answer bytes are held back, and order is kept")

	below.err = errors.New("gone")
	c.Cork(Answer)
	write("lost")
	require.ErrorIs(t, c.Uncork(), below.err)
	before := len(below.writes)
	_, err := c.Write([]byte("more"))
	require.ErrorIs(t, err, below.err)
	require.Len(t, below.writes, before, "no write follows a lost one")
	var none *Conn
	none.Cork(Answer)
	require.NoError(t, none.Uncork())
}

// A batch of events is one write to the network, although TLS makes several.
func TestCork_ABatchOfAStreamIsOneWrite(t *testing.T) {
	t.Parallel()
	var writes atomic.Int64
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control, connection := http.NewResponseController(w), Of(r)
		if err := control.Flush(); err != nil {
			t.Error(err)
		}
		before := writes.Load()
		connection.Cork(Answer)
		_, err := w.Write(make([]byte, 30<<10))
		if err := errors.Join(err, control.Flush(), connection.Uncork()); err != nil {
			t.Error(err)
		}
		if made := writes.Load() - before; r.ProtoMajor == 1 && made != 1 {
			t.Errorf("%d writes", made)
		}
	})
	for _, http2 := range []bool{false, true} {
		server := httptest.NewUnstartedServer(handler)
		server.EnableHTTP2 = http2
		server.Config.ConnContext = WithConn
		server.Listener = NewListener(countingListener{server.Listener, &writes})
		server.StartTLS()
		res, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Len(t, body, 30<<10)
		server.Close()
	}
}

type countingListener struct {
	net.Listener
	writes *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countingConn{c, l.writes}, err
}

type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

func lengths(writes [][]byte) (l []int) {
	for _, w := range writes {
		l = append(l, len(w))
	}
	return l
}
