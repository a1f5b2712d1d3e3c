//go:build linux

package sandbox

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// execute runs a script beside a container's command and returns its output and errors.
func execute(t *testing.T, p *Pod, c *Container, script string) string {
	t.Helper()
	s, err := p.Exec(c.Name, c.Run, []string{"sh", "-c", "exec 2>&1; " + script}, false, false)
	require.NoError(t, err)
	defer s.Close()
	text, err := io.ReadAll(s.Stdout)
	require.NoError(t, err)
	return string(text)
}

const triesCalls = `
	unshare -U true; unshare -m true; keyctl_id=` + "`perl -e 'print syscall(250, 0, 0, 0) < 0 ? $!+0 : 0'`" + `; echo keyctl $keyctl_id
	perl -e 'print "new ", syscall(9999) < 0 ? $!+0 : 0, "\n"; print "clone3 ", syscall(435, 0, 0) < 0 ? $!+0 : 0, "\n"'
	setarch -R true; (sleep 0 & wait); grep ^Seccomp: /proc/self/status; echo end`

func TestContainer_HasTheSeccompProfileInAllItsCommands(t *testing.T) {
	t.Parallel()
	if nativeArch != unix.AUDIT_ARCH_X86_64 {
		t.Skip("SKIPPED: the numbers of calls in this test are those of amd64")
	}
	p := startPod(t)
	check := func(log string) {
		t.Helper()
		require.Contains(t, log, "Seccomp:\t2\n", log)
		require.Equal(t, 2, strings.Count(log, "unshare failed: Operation not permitted"), log)
		require.Contains(t, log, "keyctl 1\n", "EPERM: %s", log)
		require.Contains(t, log, "new 38\n", "ENOSYS: %s", log)
		require.Contains(t, log, "clone3 38\n", log)
		require.Contains(t, log, "setarch: failed to set personality", log)
		require.Contains(t, log, "end\n", log)
	}
	c := shell(p, "exec 2>&1;"+triesCalls+"; exec sleep 1000")
	c.Seccomp = true
	require.NoError(t, p.Run(t.Context(), c))
	require.Eventually(t, func() bool { return strings.Contains(logOf(t, p, c), "end\n") }, patience, step)
	check(logOf(t, p, c))
	check(execute(t, p, c, triesCalls))

	pause := shell(p, "")
	pause.Name, pause.Cgroup, pause.Args, pause.Seccomp, pause.UID = "pause", cgroupOf(p)+"/pause", nil, true, 1234
	require.NoError(t, p.Run(t.Context(), pause))
	require.Contains(t, execute(t, p, pause, "cat /proc/1/task/*/status | grep ^Seccomp: | sort -u"), "Seccomp:\t2\n")

	may := shell(p, "grep ^Seccomp: /proc/self/status; unshare -m true && echo may; exit 0")
	may.Name, may.Cgroup, may.Seccomp = "may", cgroupOf(p)+"/may", true
	may.Capabilities = append(may.Capabilities, CapabilityNumbers["SYS_ADMIN"])
	_, log := finish(t, p, may)
	require.Equal(t, "Seccomp:\t2\nmay\n", log, "a capability allows the calls that it is for")
	free := shell(p, "grep ^Seccomp: /proc/self/status")
	free.Name, free.Cgroup, free.Seccomp, free.Privileged = "free", cgroupOf(p)+"/free", true, true
	_, log = finish(t, p, free)
	require.Equal(t, "Seccomp:\t0\n", log)
}

func TestContainer_HasItsOOMScoreAndCgroupInAllItsCommands(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	const look = "cat /proc/self/oom_score_adj; grep -E '(memory|^0:).*:/' /proc/self/cgroup"
	c := shell(p, look+"; exec sleep 1000")
	c.OOMScore = 987
	require.NoError(t, p.Run(t.Context(), c))
	require.Eventually(t, func() bool {
		return strings.Contains(logOf(t, p, c), "memory:/\n") ||
			strings.Contains(logOf(t, p, c), "0::/\n")
	}, patience, step)
	require.Equal(t, logOf(t, p, c), execute(t, p, c, look))
	require.True(t, strings.HasPrefix(logOf(t, p, c), "987\n"))
	pause := shell(p, "")
	pause.Name, pause.Cgroup, pause.Args, pause.OOMScore = "pause", cgroupOf(p)+"/pause", nil, 345
	require.NoError(t, p.Run(t.Context(), pause))
	require.Equal(t, "345\n", execute(t, p, pause, "cat /proc/1/oom_score_adj"))
	proc := t.TempDir() // lower scores take a capability that not every root has
	setOOMScore(proc, -997)
	require.NoFileExists(t, filepath.Join(proc, "oom_score_adj"), "nothing is made that the kernel has not")
	put(t, filepath.Join(proc, "oom_score_adj"), "0")
	setOOMScore(proc, -997)
	require.Equal(t, "-997", read(t, proc, "oom_score_adj"))
}

func TestContainer_WithAReadOnlyRootWritesToVolumesOnly(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	volume := t.TempDir()
	c := shell(p, "for f in /file /tmp/f /run/f /var/tmp/f /etc/f; do (echo x > $f) && echo wrote $f; done; "+
		"echo x > /run/volume/f && echo wrote the volume; echo x > /tmp/deep/f && echo wrote the other; exit 0")
	c.ReadOnlyRoot = true
	c.Mounts = []Mount{{Source: volume, Target: "/run/volume"}, {Source: volume, Target: "/tmp/deep"}}
	_, log := finish(t, p, c)
	require.Equal(t, 5, strings.Count(log, "Read-only file system"), log)
	require.Contains(t, log, "wrote the volume\n")
	require.Contains(t, log, "wrote the other\n")

	over := shell(p, "echo x > /tmp/f && echo wrote; (echo x > /run/f); exit 0")
	over.Run, over.ReadOnlyRoot, over.Mounts = 1, true, []Mount{{Source: volume, Target: "/tmp"}}
	_, log = finish(t, p, over)
	require.Contains(t, log, "wrote\n", "a volume in the place of a folder is the volume's business")
	require.Equal(t, 1, strings.Count(log, "Read-only file system"), log)
}

func TestContainer_DoesNotSeeMaskedPaths(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	const look = "for f in /proc/keys /proc/timer_list; do [ -e $f ] && wc -c < $f; done; ls /sys/firmware 2>/dev/null | wc -l"
	c := shell(p, look)
	_, log := finish(t, p, c)
	for line := range strings.Lines(log) {
		require.Equal(t, "0\n", line, log)
	}
	c.Run, c.Privileged = 1, true
	_, log = finish(t, p, c)
	require.NotEqual(t, "0\n0\n0\n", log)
}

func TestContainer_MountsHaveTheirOptions(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	volume := t.TempDir()
	inner := filepath.Join(volume, "inner")
	require.NoError(t, os.Mkdir(inner, 0o755))
	require.NoError(t, unix.Mount("tmpfs", inner, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(inner, unix.MNT_DETACH) })
	require.NoError(t, os.WriteFile(filepath.Join(volume, "run"), []byte("#!/bin/sh\necho ran\n"), 0o755))
	c := shell(p, "/some/run; /none/run; echo x > /some/inner/f && echo wrote; echo x > /all/inner/f; exit 0")
	c.Mounts = []Mount{{Source: volume, Target: "/some", ReadOnly: true},
		{Source: volume, Target: "/all", ReadOnly: true, Recursive: true},
		{Source: volume, Target: "/none", Flags: unix.MOUNT_ATTR_NOEXEC}}
	_, log := finish(t, p, c)
	require.Contains(t, log, "ran\n")
	require.Equal(t, 1, strings.Count(log, "ran\n"), log)
	require.Contains(t, log, "Permission denied")
	require.Contains(t, log, "wrote\n")
	require.Equal(t, 1, strings.Count(log, "Read-only file system"), log)
}
