package main

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Another process, such as etcdctl, has locked etcd's file. The test is not parallel, since a command sets the
// process's logger.
func TestUp_IsInterruptedWhileItWaitsForEtcdsFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	database := filepath.Join(dir, "etcd", "member", "snap", "db")
	require.NoError(t, os.MkdirAll(filepath.Dir(database), 0o700))
	locked, err := os.Create(database)
	require.NoError(t, err)
	defer locked.Close()
	require.NoError(t, syscall.Flock(int(locked.Fd()), syscall.LOCK_EX))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	cmd := newCommand()
	cmd.SetArgs([]string{"up", "--data-dir", dir, "--secure-port", "0"})
	require.ErrorContains(t, cmd.ExecuteContext(ctx), database+" is locked by another process")
}

func TestUp_RejectsRangesThatItsPodsCannotReach(t *testing.T) {
	t.Parallel()
	for _, ranges := range []string{"fd00::/112", "10.96.0.0/16,fd00::/112"} {
		up := newUp()
		up.SetArgs([]string{"--runtime", "process", "--data-dir", t.TempDir(), "--service-cluster-ip-range", ranges})
		up.SilenceErrors, up.SilenceUsage = true, true
		require.ErrorContains(t, up.ExecuteContext(t.Context()), "it must be one IPv4 range")
	}
}
