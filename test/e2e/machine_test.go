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

// systemd is the init program of a machine.
const systemd = "/usr/lib/systemd/systemd"

// datacenter is a network of machines with the same image.
type datacenter struct {
	t    *testing.T
	name string
}

// machine is a container that boots systemd. It shares only this machine's /usr.
type machine struct {
	t       *testing.T
	name    string
	kubectl string // a shell command in the machine
}

// newDatacenter creates a network and the image of its machines. Both are removed at the end of the test.
func newDatacenter(t *testing.T) *datacenter {
	t.Helper()
	needDocker(t)
	if _, err := os.Stat(systemd); err != nil {
		t.Skipf("SKIPPED: systemd is not installed here: %v", err)
	}
	if target, err := os.Readlink("/lib"); err != nil || target != "usr/lib" {
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

// emptySystem returns an archive with the files that systemd needs to boot to multi-user.target. It masks units for
// hardware and for the kernel, which is this machine's.
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
	for name, target := range units {
		add(tar.Header{Name: "etc/systemd/system/" + name, Linkname: target, Typeflag: tar.TypeSymlink}, "")
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// asOnAMachine lets systemd create cgroups, and see the mounts that pass credentials to services.
const asOnAMachine = `mount --make-rshared /
for cgroups in /sys/fs/cgroup /sys/fs/cgroup/*/; do mount -o remount,bind,rw "$cgroups" || :; done
`

// boot starts a machine with this name. It has this repository's deploy and bin, with the programs under test, in /src,
// and kubectl in /usr/local/bin. Other machines also resolve its aliases.
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

// remove removes the machine. If the test failed, it logs the output of its units.
func (m *machine) remove() {
	if m.t.Failed() {
		out, _ := docker("exec", m.name, "journalctl", "--no-pager", "--lines=100", "--unit=coxswain*")
		m.t.Logf("%s:\n%s", m.name, tail(out, 16<<10))
	}
	if out, err := docker("rm", "--force", "--volumes", m.name); err != nil {
		m.t.Errorf("%v: %s", err, out)
	}
}

// powerOn boots the machine, and waits until no unit is starting.
func (m *machine) powerOn() {
	m.t.Helper()
	mustDocker(m.t, "start", m.name)
	eventually(m.t, 2*time.Minute, "the machine has booted", func() bool {
		out, _ := docker("exec", m.name, "systemctl", "is-system-running")
		return strings.TrimSpace(out) == "running" || strings.TrimSpace(out) == "degraded"
	})
}

// powerOff stops the machine at once, like a power cut.
func (m *machine) powerOff() {
	m.t.Helper()
	mustDocker(m.t, "kill", m.name)
}

// copy copies a file or folder to the machine, owned by root.
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

// docker runs docker with a timeout of two minutes.
func docker(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	return string(out), err
}
