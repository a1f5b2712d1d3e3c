//go:build linux

package sandbox

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// limitFile returns the path where a container finds its memory limit.
func limitFile() string {
	if findCgroups(cgroupRoot).v2 {
		return filepath.Join(cgroupRoot, "memory.max")
	}
	return filepath.Join(cgroupRoot, "memory/memory.limit_in_bytes")
}

func TestPod_ContainersSeeTheirOwnLimitsAndCannotRaiseThem(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	c := shell(p, `limit=`+limitFile()+`
		cat $limit
		echo 1000000000 2>/dev/null > $limit || echo unchanged
		echo 0 2>/dev/null > $(dirname $limit)/cgroup.procs || echo stays
		mkdir $(dirname $limit)/more 2>/dev/null || echo none of its own
		mount -o remount,rw /sys/fs/cgroup 2>/dev/null || echo read-only
		cat $limit
		cut -d: -f3 /proc/self/cgroup | grep -c coxswain
		find /sys/fs/cgroup -name "*coxswain*" | wc -l
		exit 0`)
	c.Limits.MemoryBytes = 64 << 20
	exit, log := finish(t, p, c)
	require.Zero(t, exit.Code)
	require.Equal(t, "67108864\nunchanged\nstays\nnone of its own\nread-only\n67108864\n0\n0\n", log)
}

func TestPod_ResizedContainersSeeTheirNewLimit(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	c := shell(p, `while :; do cat `+limitFile()+`; sleep 0.05; done`)
	c.Limits.MemoryBytes = 64 << 20
	require.NoError(t, p.Run(t.Context(), c))
	shows := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(logOf(t, p, c), want) }, patience, step)
	}
	shows("67108864")
	require.NoError(t, Resize(c.Cgroup, Limits{MemoryBytes: 128 << 20, CPUQuota: 50_000}))
	shows("134217728")
	require.NoError(t, Resize(c.Cgroup, Limits{MemoryBytes: 32 << 20}))
	shows("33554432")
}
