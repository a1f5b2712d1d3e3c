//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slowConnections is the target number of connections. If this process may not open as many, it uses its limit.
const slowConnections = 10_000

// TestSlowConnections_AreClosedWithoutAffectingOthers holds ten thousand connections that send no data, a part of a TLS
// handshake, or a part of a request. Other clients are served meanwhile, and the server closes every slow connection by
// itself. They come from several addresses, because of the limit per address.
func TestSlowConnections_AreClosedWithoutAffectingOthers(t *testing.T) {
	t.Parallel()
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)) // Go has raised it to the hard limit
	want := slowConnections
	if maximum := int(min(limit.Cur, 1<<20)) - 1000; want > maximum {
		want = maximum
	}
	t.Logf("%d connections (this process may have %d files open)", want, limit.Cur)
	dir := dataDir(t)
	c := serving(t, start(t, "apiserver", "--data-dir", dir, "--secure-port", "0"), dir)
	address := strings.TrimPrefix(c.config.Host, "https://")

	conns := make([]net.Conn, want)
	var opening sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for part := range 50 {
		opening.Go(func() {
			for i := part; i < want; i += 50 {
				conns[i] = openSlowly(ctx, address, i)
			}
		})
	}
	opening.Wait()
	open := 0
	for _, conn := range conns {
		if conn != nil {
			open++
		}
	}
	require.Greater(t, open, want*9/10, "most connections could be opened")

	worst := time.Duration(0)
	client := c.fresh()
	for i := range 20 {
		began := time.Now()
		body := strings.NewReader(fmt.Sprintf(`{"metadata":{"name":"meanwhile-%d"}}`, i))
		res, err := client.Post(c.config.Host+"/api/v1/namespaces/default/configmaps", "application/json", body)
		require.NoError(t, err)
		_ = res.Body.Close()
		require.Equal(t, http.StatusCreated, res.StatusCode)
		worst = max(worst, time.Since(began))
	}
	t.Logf("with %d held, a request on a new connection took %v at most", open, worst)

	ended := make(chan error, len(conns))
	for _, conn := range conns {
		if conn == nil {
			continue
		}
		go func() {
			_ = conn.SetReadDeadline(time.Now().Add(90 * time.Second))
			_, err := io.Copy(io.Discard, conn)
			_ = conn.Close()
			ended <- err
		}()
	}
	for range open {
		if timeout, ok := (<-ended).(net.Error); ok {
			require.False(t, timeout.Timeout(), "the server did not close a slow connection")
		}
	}
	code, answer := c.get("/readyz")
	require.Equal(t, http.StatusOK, code, answer)
	c.server.interrupt()
}

// openSlowly opens the i-th connection and sends a part of a request, or returns nil on failure.
func openSlowly(ctx context.Context, address string, i int) net.Conn {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%4))}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil
	}
	switch {
	case i%3 == 0: // no data at all
	case i%10 != 1:
		_, _ = io.WriteString(conn, "\x16\x03\x01")
	default:
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		_ = secure.SetDeadline(time.Now().Add(30 * time.Second))
		_, _ = io.WriteString(secure, "GET /api/v1/pods HTTP/1.1\r\nHost: slow\r\nX-")
		_ = secure.SetDeadline(time.Time{})
		conn = secure
	}
	return conn
}
