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

// slowConnections is how many the issue asks for; where this process may not have as many, it takes as
// many as it may.
const slowConnections = 10_000

// TestSlowConnections_DisturbNobodyAndAreCutOff holds ten thousand connections that say nothing, a part
// of a TLS handshake, or a part of a request. Others are served meanwhile, and the server hangs up
// on every one of the slow by itself. They come from several addresses, because one may not have so many.
func TestSlowConnections_DisturbNobodyAndAreCutOff(t *testing.T) {
	t.Parallel()
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)) // Go has raised it to what it may be
	want := slowConnections
	if most := int(min(limit.Cur, 1<<20)) - 1000; want > most {
		want = most
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
	held := 0
	for _, conn := range conns {
		if conn != nil {
			held++
		}
	}
	require.Greater(t, held, want*9/10, "so many could be opened")

	worst := time.Duration(0)
	anew := c.fresh()
	for i := range 20 {
		began := time.Now()
		body := strings.NewReader(fmt.Sprintf(`{"metadata":{"name":"meanwhile-%d"}}`, i))
		res, err := anew.Post(c.config.Host+"/api/v1/namespaces/default/configmaps", "application/json", body)
		require.NoError(t, err)
		_ = res.Body.Close()
		require.Equal(t, http.StatusCreated, res.StatusCode)
		worst = max(worst, time.Since(began))
	}
	t.Logf("with %d held, a request on a new connection took %v at most", held, worst)

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
	for range held {
		if timeout, ok := (<-ended).(net.Error); ok {
			require.False(t, timeout.Timeout(), "the server lets a slow client hold a connection")
		}
	}
	code, answer := c.get("/readyz")
	require.Equal(t, http.StatusOK, code, answer)
	c.server.interrupt()
}

// openSlowly opens the i-th connection and says a little; nil if it could not.
func openSlowly(ctx context.Context, address string, i int) net.Conn {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%4))}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil
	}
	switch {
	case i%3 == 0: // nothing at all
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
