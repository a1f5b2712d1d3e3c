// Package podnetwork lets black-box tests of different packages take turns at running pods in the machine's network.
package podnetwork

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Lock waits until no other test runs pods in the machine's own network namespace, and keeps the others
// waiting until t ends. Two agents there would use the same addresses of pods and Services. Call it before the agent is
// started, since what is registered with t.Cleanup first is called last, and once in a test: it does not nest.
func Lock(t *testing.T) {
	t.Helper()
	path := filepath.Join(os.TempDir(), "coxswain-test-pod-network.lock")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() }) // releases the lock, as the end of the process does
	for err = syscall.EINTR; err == syscall.EINTR; {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
	}
	require.NoError(t, err)
}
