//go:build linux

package sandbox

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fingerprint returns the mode and the hash of a file.
func fingerprint(t *testing.T, path string) (os.FileMode, [sha256.Size]byte) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return info.Mode(), sha256.Sum256(content)
}

// The agent's program is the test binary.
func TestContainer_CannotChangeTheProgramOfTheAgent(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	require.NoError(t, err)
	mode, content := fingerprint(t, program)
	const attack = "chmod 0777 /proc/1/exe; (: > /proc/1/exe); chown 1 /proc/1/exe; exec 9</proc/1/exe; " +
		"chmod 0777 /proc/self/fd/9; (: > /proc/self/fd/9); true"
	attacks := func(p *Pod) {
		t.Helper()
		s, err := p.Exec("c", 0, []string{"sh", "-c", attack}, false, false)
		require.NoError(t, err)
		defer s.Close()
		text, err := io.ReadAll(s.Stderr)
		require.NoError(t, err)
		exit, err := s.Wait()
		require.NoError(t, err)
		require.Zero(t, exit.Code, string(text))
		nowMode, nowContent := fingerprint(t, program)
		require.Equal(t, mode, nowMode, "%s", text)
		require.Equal(t, content, nowContent, "%s", text)
		require.Contains(t, string(text), "Read-only file system")
		require.NotContains(t, string(text), "busy", "an end of the program does not open it for writing either")
	}

	t.Run("that pauses in it", func(t *testing.T) {
		p := startPod(t)
		c := shell(p, "")
		c.Args, c.Capabilities = nil, defaultCapabilities()
		require.NoError(t, p.Run(t.Context(), c))
		attacks(p)
	})
	t.Run("that interprets its command", func(t *testing.T) {
		p := startPod(t)
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "run"), []byte("#!/proc/self/exe\n"), 0o755))
		c := shell(p, "")
		c.Args, c.Capabilities = []string{"/volume/run"}, defaultCapabilities()
		c.Env = append(c.Env, idleVariable+"=yes")
		c.Mounts = []Mount{{Source: dir, Target: "/volume"}}
		require.NoError(t, p.Run(t.Context(), c))
		attacks(p)
	})
}

// A pause is the agent's program, but all its threads have the container's rights.
func TestContainer_PausesWithTheRightsOfTheContainer(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	for run, uid := range []uint32{0, 1234} {
		c := shell(p, "")
		c.Args, c.Run, c.UID, c.GID, c.NoNewPrivileges = nil, int32(run), uid, uid, true
		c.Capabilities = []int{CapabilityNumbers["CHOWN"]}
		require.NoError(t, p.Run(t.Context(), c))
		s, err := p.Exec("c", c.Run, []string{"sh", "-c",
			"cat /proc/1/task/*/status | grep -E '^(Cap|Uid|Gid|NoNewPrivs)' | sort -u"}, false, false)
		require.NoError(t, err)
		text, err := io.ReadAll(s.Stdout)
		require.NoError(t, err)
		s.Close()
		effective := "0000000000000001"
		if uid != 0 {
			effective = "0000000000000000"
		}
		id := fmt.Sprintf("\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", uid)
		require.Equal(t, "CapAmb:\t0000000000000000\nCapBnd:\t0000000000000001\nCapEff:\t"+effective+
			"\nCapInh:\t0000000000000000\nCapPrm:\t"+effective+"\nGid:"+id+"NoNewPrivs:\t1\nUid:"+id, string(text))
		require.NoError(t, p.Signal("c", c.Run, unix.SIGKILL))
		_, err = p.Wait(t.Context(), "c", c.Run)
		require.NoError(t, err)
	}
}

func defaultCapabilities() (all []int) {
	for _, name := range DefaultCapabilities {
		all = append(all, CapabilityNumbers[name])
	}
	return all
}

func TestContainer_RunsNoProgramThroughLinksOfProc(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	dir := t.TempDir()
	require.NoError(t, os.Symlink("/proc/self/exe", filepath.Join(dir, "link")))
	for i, command := range []string{"/proc/self/exe", "/proc/1/exe", "/volume/link", "/proc/self/fd/0", "exe"} {
		c := shell(p, "")
		c.Args, c.Run, c.Env = []string{command}, int32(i), []string{"PATH=/proc/self"}
		c.Mounts = []Mount{{Source: dir, Target: "/volume"}}
		var start *StartError
		require.ErrorAs(t, p.Run(t.Context(), c), &start, command)
		require.ErrorContains(t, start, "links of /proc", command)
	}
	c := shell(p, "sleep 1000")
	c.Run = 9
	require.NoError(t, p.Run(t.Context(), c))
	_, err := p.Exec("c", 9, []string{"/proc/self/exe"}, false, false) // as hooks and probes do
	require.ErrorContains(t, err, "no such file or directory")
	_, err = p.Exec("c", 9, []string{"/proc/1/exe"}, false, false)
	require.ErrorContains(t, err, "links of /proc")
}

// Any process with the right to mount, even in its own user namespace, may change the flags of a detached mount.
func TestOwnProgram_StaysReadOnlyForRoot(t *testing.T) {
	t.Parallel()
	if err := Supported(); err != nil {
		t.Skipf("SKIPPED: mounts take root, and are not tested here: %v", err)
	}
	program, err := ownProgram()
	require.NoError(t, err)
	fd := descriptor(program)
	require.ErrorIs(t, unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_clr: unix.MOUNT_ATTR_RDONLY}), unix.EINVAL)
	_, err = unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	require.ErrorIs(t, err, unix.EINVAL, "nor can it be mounted anew")
	require.ErrorIs(t, os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o777), unix.EROFS)
}
