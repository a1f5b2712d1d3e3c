package netns_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/network/netns"
)

func open(t *testing.T) *os.File {
	t.Helper()
	namespace, err := netns.New()
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("SKIPPED: network namespaces take root, and are not tested here: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = namespace.Close() })
	return namespace
}

func TestDo_RunsInTheNamespaceOnly(t *testing.T) {
	t.Parallel()
	namespace := open(t)
	require.NoError(t, netns.Do(namespace, func() error {
		devices, err := net.Interfaces()
		require.NoError(t, err)
		require.Len(t, devices, 1, "a new namespace has lo alone")
		current, err := netns.Current()
		require.NoError(t, err)
		defer current.Close()
		require.True(t, netns.Same(namespace, current))
		return nil
	}))
	for range 50 { // on any thread
		require.NoError(t, netns.Do(nil, func() error {
			current, err := netns.Current()
			require.NoError(t, err)
			defer current.Close()
			require.False(t, netns.Same(namespace, current))
			return nil
		}))
	}
	require.ErrorIs(t, netns.Do(namespace, func() error { return fs.ErrInvalid }), fs.ErrInvalid)
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	require.ErrorContains(t, netns.Do(file, func() error { return nil }), "enter network namespace")
}
