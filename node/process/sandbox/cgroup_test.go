//go:build linux

package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeHierarchy returns a folder that looks like the root of cgroup v2, or the roots of v1's controllers. In contrast
// to the kernel, it creates only the files of a cgroup that are written.
func fakeHierarchy(t *testing.T, v2 bool) (*cgroups, string) {
	t.Helper()
	root := t.TempDir()
	if v2 {
		put(t, filepath.Join(root, "cgroup.controllers"), "cpuset cpu io memory pids\n")
	} else {
		for _, controller := range wantedControllers {
			put(t, filepath.Join(root, controller, "cgroup.procs"), "")
		}
	}
	c := findCgroups(root)
	require.Equal(t, v2, c.v2)
	return c, root
}

func put(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts...))
	require.NoError(t, err)
	return string(text)
}

const aContainer = "coxswain/1/pod2/c"

func TestCgroups_V2LimitsAContainerAndItsPod(t *testing.T) {
	t.Parallel()
	c, root := fakeHierarchy(t, true)
	require.NoError(t,
		c.create(aContainer, Limits{CPUShares: 1024, CPUQuota: 50_000, MemoryBytes: 64 << 20, PodPIDs: 100}))
	dir := filepath.Join(root, aContainer)
	for file, want := range map[string]string{
		"cpu.weight": "39", "cpu.max": "50000 100000", "memory.max": "67108864", "memory.swap.max": "0",
		"memory.oom.group": "1",
	} {
		require.Equal(t, want, read(t, dir, file), file)
	}
	require.Equal(t, "100", read(t, root, "coxswain/1/pod2", "pids.max"))
	require.NoFileExists(t, filepath.Join(dir, "pids.max"))
	// each controller is written by itself
	for _, above := range []string{"", "coxswain", "coxswain/1", "coxswain/1/pod2"} {
		require.Equal(t, "+pids", read(t, root, above, "cgroup.subtree_control"), above)
	}
	require.NoFileExists(t, filepath.Join(dir, "cgroup.subtree_control"),
		"what has processes must not have controllers turned on for others")

	require.NoError(t, c.enter(aContainer, 4711))
	require.Equal(t, "4711", read(t, dir, "cgroup.procs"))
}

func TestCgroups_V2WithoutLimitsSetsOnlyTheWeight(t *testing.T) {
	t.Parallel()
	for shares, weight := range map[int64]string{2: "1", 1024: "39", 262144: "10000"} { // KEP-2254
		c, root := fakeHierarchy(t, true)
		require.NoError(t, c.create(aContainer, Limits{CPUShares: shares}))
		require.Equal(t, weight, read(t, root, aContainer, "cpu.weight"))
		for _, file := range []string{"cpu.max", "memory.max", "memory.oom.group"} {
			require.NoFileExists(t, filepath.Join(root, aContainer, file))
		}
	}
}

func TestCgroups_V2ReportsUsageAndOOM(t *testing.T) {
	t.Parallel()
	c, root := fakeHierarchy(t, true)
	_, _, err := c.usage(aContainer)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Zero(t, c.oomKills(aContainer))

	dir := filepath.Join(root, aContainer)
	put(t, filepath.Join(dir, "cpu.stat"), "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n")
	put(t, filepath.Join(dir, "memory.current"), "10485760\n")
	put(t, filepath.Join(dir, "memory.stat"), "anon 1\nfile 4194304\ninactive_file 2097152\n")
	put(t, filepath.Join(dir, "memory.events"), "low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 1\n")
	put(t, filepath.Join(dir, "pids.current"), "7\n")
	seconds, memory, err := c.usage(aContainer)
	require.NoError(t, err)
	require.InDelta(t, 2.5, seconds, 1e-9)
	require.EqualValues(t, 8<<20, memory)
	require.EqualValues(t, 1, c.oomKills(aContainer))
	pids, err := c.pids(aContainer)
	require.NoError(t, err)
	require.EqualValues(t, 7, pids)
}

func TestCgroups_V2KillsAllAtOnce(t *testing.T) {
	t.Parallel()
	c, root := fakeHierarchy(t, true)
	put(t, filepath.Join(root, aContainer, "cgroup.procs"), "")
	put(t, filepath.Join(root, aContainer, "cgroup.kill"), "")
	c.kill(aContainer)
	require.Equal(t, "1", read(t, root, aContainer, "cgroup.kill"))
}

func TestCgroups_V1HasAFileForEachController(t *testing.T) {
	t.Parallel()
	c, root := fakeHierarchy(t, false)
	require.NoError(t, c.create(aContainer, Limits{CPUShares: 512, CPUQuota: 20_000, MemoryBytes: 1 << 20, PodPIDs: 9}))
	for file, want := range map[string]string{
		"cpu/cpu.shares": "512", "cpu/cpu.cfs_quota_us": "20000", "memory/memory.limit_in_bytes": "1048576",
		"memory/memory.memsw.limit_in_bytes": "1048576",
	} {
		controller, name := filepath.Split(file)
		require.Equal(t, want, read(t, root, controller, aContainer, name), file)
	}
	require.Equal(t, "9", read(t, root, "pids/coxswain/1/pod2/pids.max"))
	put(t, filepath.Join(root, "memory", aContainer, "memory.oom_control"),
		"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
	put(t, filepath.Join(root, "pids", aContainer, "pids.current"), "2\n")
	require.EqualValues(t, 3, c.oomKills(aContainer))
	pids, err := c.pids(aContainer)
	require.NoError(t, err)
	require.EqualValues(t, 2, pids)
}

// The rest needs a kernel. Most machines have a v2 hierarchy, if only beside v1 and without controllers.
func TestCgroups_V2InTheKernel(t *testing.T) {
	t.Parallel()
	var c *cgroups
	for _, root := range []string{cgroupRoot, filepath.Join(cgroupRoot, "unified")} {
		if found := findCgroups(root); found.v2 {
			c = found
			break
		}
	}
	if c == nil || os.Geteuid() != 0 {
		t.Skip("SKIPPED: no hierarchy of cgroup v2 to write to")
	}
	pod := fmt.Sprintf("coxswain-test-%d/pod", os.Getpid())
	if err := c.create(pod+"/c", Limits{}); err != nil {
		t.Skipf("SKIPPED: no cgroup can be made: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(filepath.Join(c.root, filepath.Dir(pod))) })
	cmd := sleeper(t)
	require.NoError(t, c.enter(pod+"/c", cmd.Process.Pid))
	require.Equal(t, fmt.Sprintln(cmd.Process.Pid), read(t, c.root, pod, "c", "cgroup.procs"))
	require.Error(t, c.remove(pod), "it is busy")
	c.kill(pod)
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { return c.remove(pod) == nil }, patience, step)
	require.NoDirExists(t, filepath.Join(c.root, pod))
}

func TestCgroups_ResizeWritesTheLimitsOfBothVersions(t *testing.T) {
	t.Parallel()
	limits := Limits{CPUShares: 2048, CPUQuota: 200_000, MemoryBytes: 64 << 20, MemoryMin: 32 << 20}
	for _, tt := range []struct {
		v2    bool
		files map[string]string
	}{
		{true, map[string]string{"cpu.max": "200000 100000", "cpu.weight": "79", "memory.max": "67108864",
			"memory.min": "33554432"}},
		{false, map[string]string{
			"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.shares": "2048", "memory/memory.limit_in_bytes": "67108864"}},
	} {
		c, root := fakeHierarchy(t, tt.v2)
		require.NoError(t, c.create(aContainer, Limits{CPUShares: 1024, CPUQuota: 50_000, MemoryBytes: 32 << 20}))
		require.NoError(t, c.resize(aContainer, limits))
		for file, want := range tt.files {
			controller, name := filepath.Split(file)
			text, err := os.ReadFile(filepath.Join(root, controller, aContainer, name))
			require.NoError(t, err)
			require.Equal(t, want, string(text), file)
		}
	}
}

func TestCgroups_ResizeFailsBelowTheMemoryInUse(t *testing.T) {
	t.Parallel()
	c, root := fakeHierarchy(t, true)
	require.NoError(t, c.create(aContainer, Limits{MemoryBytes: 128 << 20}))
	put(t, filepath.Join(root, aContainer, "memory.current"), "100000000\n")
	require.EqualError(t, c.resize(aContainer, Limits{MemoryBytes: 64 << 20}),
		"attempting to set memory limit (67108864) below current usage (100000000)")
	text, err := os.ReadFile(filepath.Join(root, aContainer, "memory.max"))
	require.NoError(t, err)
	require.Equal(t, "134217728", string(text))
}
