package proxy

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
)

// While the proxy restarts again and again, an open connection continues in both directions and no new one fails.
func TestProxy_RestartsWithoutLosingConnections(t *testing.T) {
	w := newWorld(t)
	a, b, client := w.pod().serve(8080), w.pod().serve(8080), w.pod()
	s := newService("web", 1, exposed)
	slices := newSlices(s, a.endpoint(), b.endpoint())
	w.set(w.rules(), s, slices)
	open, err := dial(client.namespace, "tcp", "10.96.0.1:80")
	require.NoError(t, err)
	defer open.Close()
	_, _, err = question(open, "tcp")
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	count, failed := make([]int, 3), make([]error, 3)
	for i, to := range []string{"10.96.0.1:80", "[fd96::1]:80", "192.0.2.10:30080"} {
		load.Go(func() {
			for ctx.Err() == nil && failed[i] == nil {
				_, _, failed[i] = ask(client.namespace, "tcp", to)
				count[i]++
			}
		})
	}
	echo := make([]byte, 4)
	for range 30 {
		rules := w.rules()
		w.set(rules, s, slices)
		rules.close()
		_, err := open.Write([]byte("ping"))
		require.NoError(t, err)
		_ = open.SetReadDeadline(time.Now().Add(limit))
		_, err = open.Read(echo)
		require.NoError(t, err)
		require.Equal(t, "ping", string(echo))
	}
	cancel()
	load.Wait()
	require.NoError(t, errors.Join(failed...))
	t.Logf("connections: %v", count)
}

func TestFollow_FollowsTheFile(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/netns"
	seen := make(chan string)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Follow(ctx, file, clock.RealClock{}, func(ctx context.Context, namespace *os.File) error {
			b := make([]byte, 1)
			_, err := namespace.Read(b)
			seen <- string(b)
			<-ctx.Done()
			return err
		})
	}()
	for _, content := range []string{"1", "2"} {
		require.NoError(t, os.WriteFile(file+"-new", []byte(content), 0o600))
		require.NoError(t, os.Rename(file+"-new", file))
		require.Equal(t, content, <-seen)
	}
	cancel()
	require.NoError(t, <-ended)
}
