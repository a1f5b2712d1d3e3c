//go:build linux

package sandbox

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A stopped shim process accepts connections but does not answer.
func TestCall_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, socketName), Net: "unix"})
	require.NoError(t, err)
	defer listener.Close()
	p := Adopt(Config{Dir: dir})
	for name, call := range map[string]func(context.Context) error{
		"run":     func(ctx context.Context) error { return p.Run(ctx, &Container{Name: "c"}) },
		"stop":    func(ctx context.Context) error { return p.Stop(ctx) },
		"remove":  func(ctx context.Context) error { return p.Remove(ctx) },
		"sysctls": func(ctx context.Context) error { return p.SetSysctls(ctx, []Sysctl{{"kernel.msgmax", "1"}}) },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		conn, err := listener.AcceptUnix()
		require.NoError(t, err)
		cancel()
		err = <-done
		require.ErrorIs(t, err, context.Canceled, name)
		require.NotErrorIs(t, err, ErrGone, name)
		_ = conn.Close()
	}
	require.DirExists(t, dir, "a pod whose shim may live keeps its files")
}
