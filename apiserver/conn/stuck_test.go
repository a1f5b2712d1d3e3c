package conn

import (
	"context"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEndStuck_CutsOffClientsThatDoNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewListener(nil)
		open := func() (*Conn, net.Conn) {
			server, client := net.Pipe()
			c := &Conn{Conn: server, listener: l}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.open[c] = struct{}{}
			return c, client
		}
		stuck, _ := open()
		slow, reader := open()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go l.EndStuck(ctx, time.Second)
		go func() {
			for b := make([]byte, 1); ; time.Sleep(700 * time.Millisecond) {
				if _, err := reader.Read(b); err != nil {
					return
				}
			}
		}()
		go func() {
			for range 10 {
				if _, err := slow.Write([]byte{1}); err != nil {
					t.Error(err)
				}
			}
			_ = slow.Conn.Close()
		}()
		began := time.Now()
		_, err := stuck.Write([]byte("the client does not read this"))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Less(t, time.Since(began), 2*time.Second+time.Millisecond)
		time.Sleep(10 * time.Second)

		idle, _ := open()
		idle.EndIfStuck()
		(*Conn)(nil).EndIfStuck()
		time.Sleep(time.Second)
		go func() {
			time.Sleep(time.Second)
			idle.EndIfStuck()
		}()
		began = time.Now()
		_, err = idle.Write([]byte("the client does not read this either"))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it is ignored without a write in progress")
		require.Less(t, time.Since(began), 2*time.Second)
	})
}
