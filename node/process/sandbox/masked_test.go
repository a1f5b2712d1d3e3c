//go:build linux

package sandbox

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// secrets makes a folder with a key that no container may see, and a kubeconfig beside it.
func secrets(t *testing.T) (top, folder, file string) {
	t.Helper()
	top = t.TempDir()
	folder, file = filepath.Join(top, "data"), filepath.Join(top, "kubeconfig")
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "node"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "node", "key"), []byte("top-secret\n"), 0o644))
	require.NoError(t, os.WriteFile(file, []byte("top-secret\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(top, "public"), []byte("in sight\n"), 0o644))
	return top, folder, file
}

func TestContainer_DoesNotSeeHiddenFilesThroughMounts(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	top, folder, file := secrets(t)
	alias := t.TempDir() // another name of the folder above, as fstab gives
	require.NoError(t, unix.Mount(top, alias, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(alias, unix.MNT_DETACH) })
	inner := t.TempDir() // another name of a folder within it
	require.NoError(t, unix.Mount(filepath.Join(folder, "node"), inner, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(inner, unix.MNT_DETACH) })

	c := shell(p, `
		cat /top/public
		for root in "" /host /host/proc/`+fmt.Sprint(os.Getpid())+`/root; do
			find $root`+top+` $root`+alias+` $root`+inner+` -type f 2>/dev/null | xargs -r cat
			cat $root`+folder+`/node/key $root`+file+` $root`+inner+`/key
		done
		find /top /dir -type f | xargs cat
		cat /dir/`+filepath.Base(top)+`/data/node/key /dir/`+filepath.Base(top)+`/kubeconfig
		umount /top/data || echo cannot unmount
		echo own; cat /volume/key`)
	c.Hide = []string{folder, file}
	for name := range CapabilityNumbers {
		for _, usual := range DefaultCapabilities {
			if name == usual {
				c.Capabilities = append(c.Capabilities, CapabilityNumbers[name])
			}
		}
	}
	c.Mounts = []Mount{
		{Source: top, Target: "/top"},
		{Source: filepath.Dir(top), Target: "/dir", ReadOnly: true},
		{Source: "/", Target: "/host"},
		{Source: filepath.Join(folder, "node"), Target: "/volume", Own: true},
	}
	_, log := finish(t, p, c)
	seen, own, _ := strings.Cut(log, "own\n")
	require.Contains(t, seen, "in sight\n", "the rest of the folder is there")
	require.NotContains(t, seen, "top-secret", log)
	require.Contains(t, seen, "cannot unmount")
	require.Contains(t, own, "top-secret\n", "a volume of the agent's own may be in what is hidden")
}

func TestContainer_CannotMountHiddenFiles(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	top, folder, file := secrets(t)
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(folder, link))
	alias := t.TempDir()
	require.NoError(t, unix.Mount(filepath.Join(folder, "node"), alias, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(alias, unix.MNT_DETACH) })
	for i, m := range []Mount{
		{Source: folder}, {Source: filepath.Join(folder, "node")}, {Source: filepath.Join(folder, "node", "key")},
		{Source: file}, {Source: link}, {Source: filepath.Join(link, "node")}, {Source: alias},
		{Source: top, SubPath: "data"}, {Source: top, SubPath: "data/node/key"}, {Source: "/proc/self/root" + folder},
		{Source: "/", SubPath: strings.TrimPrefix(folder, "/")},
		{Source: alias + "/../" + filepath.Base(alias) + "/key"},
	} {
		m.Target = "/seen"
		c := shell(p, "cat /seen /seen/*")
		c.Hide, c.Mounts, c.Run = []string{folder, file}, []Mount{m}, int32(i)
		var start *StartError
		require.ErrorAs(t, p.Run(t.Context(), c), &start, "%+v", m)
		require.ErrorContains(t, start, errMasked.Error(), "%+v", m)
		require.ErrorIs(t, Visible(filepath.Join(m.Source, m.SubPath), c.Hide), errMasked, "%+v", m)
	}
	require.ErrorIs(t, Visible(filepath.Join(link, "no", "such"), []string{folder}), errMasked, "what is not there yet")
	require.NoError(t, Visible(filepath.Join(top, "no", "such"), []string{folder}))
	require.NoError(t, Visible(top, []string{folder, "/no/such"}))
}

// A disk's device exposes all files on the disk.
func TestContainer_OpensNoDevicesOfVolumes(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	dir := t.TempDir()
	require.NoError(t, unix.Mknod(filepath.Join(dir, "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))))
	c := shell(p, "head -c 4 /dev/zero | wc -c; head -c 4 /volume/zero; head -c 4 /one; head -c 1 /host"+dir+"/zero")
	c.Mounts = []Mount{{Source: dir, Target: "/volume"}, {Source: filepath.Join(dir, "zero"), Target: "/one"},
		{Source: "/", Target: "/host"}}
	_, log := finish(t, p, c)
	require.Contains(t, log, "4\n")
	require.Equal(t, 3, strings.Count(log, "Permission denied"), log)

	mounts, err := ownMounts()
	require.NoError(t, err)
	if slices.ContainsFunc(mounts, func(m mounted) bool { return m.mountPoint == "/dev" && m.kind == "devtmpfs" }) {
		c = shell(p, "head -c 4 /host/dev/zero | wc -c; echo x > /host/dev/null && echo written; head -c 1 "+
			"/host/dev/kmsg")
		c.Mounts, c.Run = []Mount{{Source: "/", Target: "/host"}}, 2
		_, log = finish(t, p, c)
		require.Contains(t, log, "4\n", "those that every container has are its own")
		require.Contains(t, log, "written\n")
		require.Contains(t, log, "Permission denied") // on a stream of its own, which may be read sooner
	}
	c = shell(p, "head -c 4 /one | wc -c")
	c.Privileged, c.Run = true, 1
	c.Mounts = []Mount{{Source: filepath.Join(dir, "zero"), Target: "/one"}}
	_, log = finish(t, p, c)
	require.Equal(t, "4\n", log)
}

// Symbolic links in a volume decide where a mount in it is made, but must not lead out of the container.
func TestContainer_MountsStayInside(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	volume, outside := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink("/proc/"+fmt.Sprint(os.Getpid())+"/root"+outside, filepath.Join(volume, "host")))
	require.NoError(t, os.Symlink("/proc/self/fd", filepath.Join(volume, "fd")))
	require.NoError(t, os.Symlink("/srv/here", filepath.Join(volume, "dangling")))
	for i, target := range []string{"/volume/host/made", "/volume/fd/3/made"} {
		c := shell(p, "true")
		c.HostPID, c.Run = true, int32(i)
		c.Mounts = []Mount{{Source: volume, Target: "/volume"}, {Source: outside, Target: target}}
		var start *StartError
		require.ErrorAs(t, p.Run(t.Context(), c), &start, target)
	}
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, entries)

	c := shell(p, "echo x > /volume/dangling/file; ls /var/run/a/b; cat /volume/link/x")
	require.NoError(t, os.Symlink("/etc", filepath.Join(volume, "link")))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "f"), []byte("mounted\n"), 0o644))
	c.Run = 3
	c.Mounts = []Mount{
		{Source: volume, Target: "/volume"}, {Source: outside, Target: "/volume/dangling"},
		{Source: outside, Target: "/var/run/a/b"},
		{Source: filepath.Join(outside, "f"), Target: "/volume/link/x"},
	}
	exit, log := finish(t, p, c)
	require.Zero(t, exit.Code, log)
	require.Contains(t, log, "f\n")
	require.Contains(t, log, "mounted\n")
	require.FileExists(t, filepath.Join(outside, "file"))
}

func TestReadMounts_DecodesEscapedNames(t *testing.T) {
	t.Parallel()
	all, err := readMounts(
		strings.NewReader("36 35 98:0 /a\\040b /mnt\\134x\\011y rw,noatime master:1 - ext3 /dev/root rw\nnonsense\n"))
	require.NoError(t, err)
	require.Equal(t, []mounted{{id: 36, device: "98:0", root: "/a b", mountPoint: "/mnt\\x\ty", kind: "ext3"}}, all)
}

// The process that becomes the container's command still has all rights when it changes to the working directory.
func TestContainer_WorkingDirectoryStaysInside(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	me := "/proc/" + fmt.Sprint(os.Getpid())
	for name, change := range map[string]func(*Config){"own processes": func(*Config) {},
		"shared processes": func(s *Config) {
			s.SharePIDs = true
		}} {
		p := startPod(t, change)
		volume := t.TempDir()
		require.NoError(t, os.Symlink(me+"/root", filepath.Join(volume, "link")))
		for i, dir := range []string{"/proc/1/root/..", "/proc/1/cwd/..", me + "/root" + outside, me + "/cwd",
			"/volume/link" + outside + "/made", "/proc/self/fd/3"} {
			c := shell(p, "ls")
			c.Dir, c.Run, c.HostPID = dir, int32(i), strings.Contains(dir, me) || strings.Contains(dir, "link")
			c.Mounts = []Mount{{Source: volume, Target: "/volume"}}
			var start *StartError
			require.ErrorAs(t, p.Run(t.Context(), c), &start, "%s: %s", name, dir)
		}
	}
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, entries)

	p := startPod(t)
	c := shell(p, "pwd; read line")
	c.Dir, c.Stdin = "/srv/made/for/it", true
	require.NoError(t, p.Run(t.Context(), c))
	s, err := p.Exec("c", 0, []string{"sh", "-c", "pwd; tty"}, false, true)
	require.NoError(t, err)
	defer s.Close()
	text, _ := io.ReadAll(s.Terminal) // always ends with an error
	require.Contains(t, string(text), "/srv/made/for/it")
	require.Contains(t, string(text), "/dev/pts/0")
}

// The agent's files for a container are in a folder that is hidden from the container.
func TestContainer_HasItsOwnFoldersInsideHiddenOnes(t *testing.T) {
	t.Parallel()
	p := startPod(t)
	c := shell(p, "for dir in /tmp /var/tmp /run; do echo x > $dir/file && cat $dir/file; done; cat /run/volume/f; ls "+
		p.Dir+" 2>&1")
	volume := filepath.Join(p.Dir, "volume")
	require.NoError(t, os.MkdirAll(volume, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(volume, "f"), []byte("of a volume\n"), 0o644))
	c.Hide = []string{filepath.Dir(p.Dir)}
	c.Mounts = []Mount{{Source: volume, Target: "/run/volume", Own: true}}
	_, log := finish(t, p, c)
	require.Contains(t, log, "x\nx\nx\nof a volume\n")
	require.NotContains(t, log, "shim.log")
}
