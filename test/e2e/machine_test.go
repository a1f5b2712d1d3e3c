//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// systemd is the first program of a machine.
const systemd = "/usr/lib/systemd/systemd"

// datacenter is a network of machines, which have one image.
type datacenter struct {
	t    *testing.T
	name string
}

// machine is a container that boots systemd, with this machine's /usr and everything else its own.
type machine struct {
	t       *testing.T
	name    string
	kubectl string // a shell command there
}

// newDatacenter makes a network and the image of its machines. Both are gone at the end of the test.
func newDatacenter(t *testing.T) *datacenter {
	t.Helper()
	needDocker(t)
	if _, err := os.Stat(systemd); err != nil {
		t.Skipf("SKIPPED: systemd is not installed here: %v", err)
	}
	if to, err := os.Readlink("/lib"); err != nil || to != "usr/lib" {
		t.Skip("SKIPPED: systemd cannot run from /usr alone here: /lib is no link to usr/lib")
	}
	d := &datacenter{t, "coxswain-machines-" + freePort(t)}
	image := exec.Command("docker", "import", "-", d.name)
	image.Stdin = bytes.NewReader(emptySystem(t))
	t.Cleanup(func() { _, _ = docker("image", "rm", d.name) })
	out, err := image.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() { _, _ = docker("network", "rm", d.name) })
	mustDocker(t, "network", "create", d.name)
	return d
}

// emptySystem is an archive of what systemd wants to find: a system that boots to multi-user.target. It masks units
// that are for hardware and for the kernel, which is this machine's.
func emptySystem(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(h tar.Header, content string) {
		h.Mode, h.Size = 0o755, int64(len(content))
		require.NoError(t, w.WriteHeader(&h))
		_, err := w.Write([]byte(content))
		require.NoError(t, err)
	}
	for _, folder := range []string{"usr", "etc", "var", "run", "tmp", "root", "proc", "sys", "dev", "src"} {
		add(tar.Header{Name: folder, Typeflag: tar.TypeDir}, "")
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		add(tar.Header{Name: name, Linkname: "usr/" + name, Typeflag: tar.TypeSymlink}, "")
	}
	for name, content := range map[string]string{"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n",
		"os-release": "ID=test\n", "machine-id": ""} {
		add(tar.Header{Name: "etc/" + name, Typeflag: tar.TypeReg}, content)
	}
	units := map[string]string{"default.target": "/usr/lib/systemd/system/multi-user.target"}
	for _, masked := range []string{"systemd-sysctl.service", "systemd-modules-load.service",
		"systemd-remount-fs.service", "systemd-udevd.service", "getty.target"} {
		units[masked] = "/dev/null"
	}
	for name, to := range units {
		add(tar.Header{Name: "etc/systemd/system/" + name, Linkname: to, Typeflag: tar.TypeSymlink}, "")
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// asOnAMachine lets systemd make cgroups, and see the mounts by which it hands credentials to services.
const asOnAMachine = `mount --make-rshared /
for cgroups in /sys/fs/cgroup /sys/fs/cgroup/*/; do mount -o remount,bind,rw "$cgroups" || :; done
`

// boot starts a machine of that name, which has this repository's deploy and bin, the programs under test, in /src, and
// kubectl in /usr/local/bin. The other machines know it by the aliases as well.
func (d *datacenter) boot(name string, aliases ...string) *machine {
	d.t.Helper()
	m := &machine{t: d.t, name: d.name + "-" + name}
	root, err := filepath.Abs("../..")
	require.NoError(d.t, err)
	bin, err := filepath.Abs(filepath.Dir(coxswain))
	require.NoError(d.t, err)
	client, err := filepath.EvalSymlinks(kubectl)
	require.NoError(d.t, err)
	args := []string{"create", "--name", m.name, "--hostname", name, "--network", d.name, "--network-alias", name,
		"--cgroupns", "private", "--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE", "--security-opt", "seccomp=unconfined",
		"--security-opt", "apparmor=unconfined", "--security-opt", "systempaths=unconfined",
		"--tmpfs", "/run", "--tmpfs", "/tmp", "--volume", "/usr/local/bin", "--env", "container=docker",
		"--volume", "/usr:/usr:ro", "--volume", "/etc/ld.so.cache:/etc/ld.so.cache:ro",
		"--volume", root + "/deploy:/src/deploy:ro", "--volume", bin + ":/src/bin:ro",
		"--volume", client + ":/usr/local/bin/kubectl:ro"}
	for _, alias := range aliases {
		args = append(args, "--network-alias", alias)
	}
	d.t.Cleanup(m.remove)
	mustDocker(d.t, append(args, d.name, "sh", "-c", asOnAMachine+"exec "+systemd)...)
	m.powerOn()
	return m
}

// remove ends the machine. Of a failed test what its units have said is shown.
func (m *machine) remove() {
	if m.t.Failed() {
		out, _ := docker("exec", m.name, "journalctl", "--no-pager", "--lines=100", "--unit=coxswain*")
		m.t.Logf("%s:\n%s", m.name, tail(out, 16<<10))
	}
	if out, err := docker("rm", "--force", "--volumes", m.name); err != nil {
		m.t.Errorf("%v: %s", err, out)
	}
}

// powerOn boots the machine, until no unit is being started.
func (m *machine) powerOn() {
	m.t.Helper()
	mustDocker(m.t, "start", m.name)
	eventually(m.t, 2*time.Minute, "the machine has booted", func() bool {
		out, _ := docker("exec", m.name, "systemctl", "is-system-running")
		return strings.TrimSpace(out) == "running" || strings.TrimSpace(out) == "degraded"
	})
}

// powerOff ends the machine at once, as a cut cable does.
func (m *machine) powerOff() {
	m.t.Helper()
	mustDocker(m.t, "kill", m.name)
}

// copy brings a file or folder to the machine, where it is root's.
func (m *machine) copy(from, to string) {
	m.t.Helper()
	mustDocker(m.t, "cp", from, m.name+":"+to)
}

// run runs a shell command as root in /src.
func (m *machine) run(command string) string {
	m.t.Helper()
	out, err := m.try(command)
	require.NoError(m.t, err, "%s: %s: %s", m.name, command, out)
	return strings.TrimSpace(out)
}

func (m *machine) try(command string) (string, error) {
	return docker("exec", "--workdir", "/src", m.name, "sh", "-ec", command)
}

// mustDocker requires that docker succeeds.
func mustDocker(t *testing.T, args ...string) {
	t.Helper()
	out, err := docker(args...)
	require.NoError(t, err, "docker %v: %s", args, out)
}

// docker runs docker for two minutes at most.
func docker(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	return string(out), err
}
