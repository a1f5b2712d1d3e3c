package conn

import (
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLimitByMemory_ClosesConnectionsAboveTheLimit(t *testing.T) {
	t.Parallel()
	below, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer below.Close()
	var memory atomic.Int64
	memory.Store(25)
	ln := LimitByMemory(below, memory.Load, 10, slog.New(slog.DiscardHandler))
	accepted := make(chan net.Conn, 10)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", below.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	dial()
	first := <-accepted
	dial()
	<-accepted
	_, err = dial().Read(make([]byte, 1))
	require.Error(t, err, "the third does not fit")
	require.NoError(t, first.Close())
	_ = first.Close() // counts once
	dial()
	<-accepted
	_, err = dial().Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	memory.Store(0)
	dial()
	<-accepted
}
