//go:build e2e && linux

package modes

import (
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/test/podnetwork"
	"github.com/coxswain-dev/coxswain/test/wallclock"
)

// TestModes runs the smoke test in every mode.
func TestModes(t *testing.T) {
	for _, mode := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"one process", oneProcess},
		{"encrypted, audited and with little memory", hardened},
		{"etcd by TLS", etcdByTLS},
		{"etcd by a unix socket", etcdBySocket},
		{"HTTP 1.1 only", onlyHTTP1},
		{"not as root", notAsRoot},
		{"three API servers", threeServers},
		{"IPv6 only", onlyIPv6},
		{"dual-stack", dualStack},
		{"slow disk", slowDisk},
		{"wrong clocks", wrongClocks},
		{"process runtime", processRuntime},
		{"full disk", fullDisk},
		{"disk filled by objects", selfFilledDisk},
		{"etcd at its quota", fullQuota},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			mode.run(t)
			t.Logf("took %.1f s", time.Since(began).Seconds())
		})
	}
}

// lives does in a control plane all that is done in every mode.
func (c *cluster) lives() {
	c.t.Helper()
	c.smoke("smoke")
	c.resumes()
}

func oneProcess(t *testing.T) {
	c := up(t, launch{}, dataDir(t))
	require.Equal(t, "HTTP/2.0", c.protocol())
	c.lives()
	c.server.interrupt()
}

// hardened encrypts all that is stored, audits all requests with their answers, and gives them the least
// memory.
func hardened(t *testing.T) {
	dir := dataDir(t)
	in := func(name, content string) string {
		path := filepath.Join(filepath.Dir(dir), name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	log := in("audit.log", "")
	c := up(t, launch{env: []string{"GOMEMLIMIT=128MiB"}}, dir, "--max-request-memory", "28Mi",
		"--encryption-provider-config", in("encryption.yaml", `{apiVersion: apiserver.config.k8s.io/v1,
kind: EncryptionConfiguration, resources: [{resources: ["*.*"], providers: [{secretbox: {keys:
[{name: one, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}}]}]}`),
		"--audit-policy-file", in("audit.yaml", `{apiVersion: audit.k8s.io/v1, kind: Policy,
rules: [{level: RequestResponse}]}`), "--audit-log-path", log)
	c.lives()
	c.server.interrupt()
	audited, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Contains(t, string(audited), `"requestURI":"/api/v1/namespaces/smoke/secrets`)
	require.Contains(t, string(audited), `"responseObject":`)
	require.Empty(t, filesWith(t, filepath.Join(dir, "etcd"), planted, "cGxhbnRlZC1wbGFpbnRleHQ=",
		"kubernetes.io/metadata.name"))
}

// filesWith returns the files of a folder that have one of the texts in them.
func filesWith(t *testing.T, dir string, texts ...string) (found []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		for _, text := range texts {
			if strings.Contains(string(content), text) {
				found = append(found, path)
			}
		}
		return err
	}))
	return found
}

// etcdServer is an etcd of its own, and the API server's flags for it.
type etcdServer struct {
	*process
	flags []string
}

// etcd starts one that clients reach by a URL.
func etcd(t *testing.T, url string, args ...string) *etcdServer {
	t.Helper()
	peer := "http://127.0.0.1:" + freePort(t, "127.0.0.1")
	p := launch{}.start(t, append([]string{"etcd", "--name", "e", "--data-dir", dataDir(t), "--log-level", "error",
		"--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer,
		"--initial-advertise-peer-urls", peer, "--initial-cluster", "e=" + peer}, args...)...)
	return &etcdServer{p, []string{"--etcd-servers", url}}
}

// apiserver starts an API server on it.
func (e *etcdServer) apiserver(dir string, args ...string) *cluster {
	e.t.Helper()
	return serve(e.t, launch{}, dir, append(append([]string{"apiserver"}, e.flags...), args...)...)
}

func etcdByTLS(t *testing.T) {
	dir := dataDir(t)
	certs := launch{}.start(t, "certs", "--data-dir", dir, "--server", "https://127.0.0.1", "--etcd-san", "127.0.0.1")
	<-certs.exited
	require.Zero(t, certs.cmd.ProcessState.ExitCode(), certs.out.String())
	in := func(name string) string { return filepath.Join(dir, "pki", name) }
	e := etcd(t, "https://127.0.0.1:"+freePort(t, "127.0.0.1"), "--client-cert-auth", "--trusted-ca-file",
		in("etcd/ca.crt"), "--cert-file", in("etcd/server.crt"), "--key-file", in("etcd/server.key"))
	e.flags = append(e.flags, "--etcd-cafile", in("etcd/ca.crt"), "--etcd-certfile", in("apiserver-etcd-client.crt"),
		"--etcd-keyfile", in("apiserver-etcd-client.key"))
	c := e.apiserver(dataDir(t))
	c.components(nil)
	c.lives()
}

func etcdBySocket(t *testing.T) {
	socket := filepath.Join(filepath.Dir(dataDir(t)), "etcd.sock")
	c := etcd(t, "unix://"+socket).apiserver(dataDir(t))
	c.components(nil)
	c.lives()
}

func onlyHTTP1(t *testing.T) {
	c := up(t, launch{env: []string{"GODEBUG=http2server=0,http2client=0"}}, dataDir(t))
	require.Equal(t, "HTTP/1.1", c.protocol())
	c.lives()
}

func notAsRoot(t *testing.T) {
	needRoot(t, "becoming another user")
	const nobody = 65534
	dir := dataDir(t)
	require.NoError(t, os.Chown(filepath.Dir(dir), nobody, nobody))
	// The program may be in a folder that is closed to other users.
	program := filepath.Join(filepath.Dir(dir), "coxswain")
	require.NoError(t, copyFile(coxswain, program))
	c := up(t, launch{program: program, user: &syscall.Credential{Uid: nobody, Gid: nobody}}, dir)
	c.lives()
	info, err := os.Stat(c.kubeconfig("admin"))
	require.NoError(t, err)
	require.EqualValues(t, nobody, info.Sys().(*syscall.Stat_t).Uid)
}

func copyFile(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

func threeServers(t *testing.T) {
	e := etcd(t, "http://127.0.0.1:"+freePort(t, "127.0.0.1"))
	c := e.apiserver(dataDir(t))
	c.components(nil)
	for range 2 {
		dir := dataDir(t)
		require.NoError(t, os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(filepath.Join(c.dir, "pki"))))
		c.others = append(c.others, e.apiserver(dir).client)
	}
	c.lives()
}

func needIPv6(t *testing.T) {
	t.Helper()
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("SKIPPED: this machine has no IPv6: ", err)
	}
	_ = ln.Close()
}

// onlyIPv6 lets the server and its etcd listen on IPv6 alone. Services get IPv6 addresses, but the pods of
// simulated nodes have IPv4 ones. Such a Service therefore has no endpoints here.
func onlyIPv6(t *testing.T) {
	needIPv6(t)
	c := up(t, launch{}, dataDir(t), "--bind-address", "::1")
	require.Contains(t, c.config.Host, "[::1]")
	c.lives()

	e := etcd(t, "http://[::1]:"+freePort(t, "::1"))
	c = e.apiserver(dataDir(t), "--bind-address", "::1", "--service-cluster-ip-range", "fd00:10:96::/112")
	c.kubectl("default", "create", "service", "clusterip", "six", "--tcp=80")
	require.Equal(t, "fd00:10:96::1", c.address("kubernetes"))
	require.Contains(t, c.address("six"), "fd00:10:96::")
	c.nodes = 0
	c.resumes()
}

// address returns the cluster IPs of a Service in the default namespace.
func (c *cluster) address(service string) string {
	c.t.Helper()
	return c.kubectl("default", "get", "service", service, "-o", "jsonpath={.spec.clusterIPs[*]}")
}

func dualStack(t *testing.T) {
	needIPv6(t)
	c := up(t, launch{}, dataDir(t), "--service-cluster-ip-range", "10.96.0.0/16,fd00:10:96::/112")
	c.lives()
	c.kubectl("default", "create", "service", "clusterip", "both", "--tcp=80")
	c.kubectl("default", "patch", "service", "both", "-p", `{"spec":{"ipFamilyPolicy":"RequireDualStack"}}`)
	addresses := strings.Fields(c.address("both"))
	require.Len(t, addresses, 2)
	require.Contains(t, addresses[1], "fd00:10:96::")
}

// slowDisk lengthens each fdatasync by a second. A write takes two or three of them. The rollout makes some
// sixty writes one after the other, and is given a tenth of a second.
func slowDisk(t *testing.T) {
	disk := &slowness{}
	disk.set(time.Second)
	c := served(t, dataDir(t), []string{"up"}, func(args []string) *process { return disk.start(t, args...) })
	began := time.Now()
	c.kubectl("default", "create", "namespace", "smoke")
	require.Greater(t, time.Since(began), time.Second, "a write waits for the disk")
	c.nodesReady()
	c.do("smoke", simpleParts)
	c.resumes()
	disk.set(time.Second / 10)
	c.do("smoke", rollout)
	c.end("smoke")
}

// wrongClocks sets the clock of each part an hour forward and back. In the end neighbours are two hours
// apart, and the smoke test runs.
func wrongClocks(t *testing.T) {
	e := etcd(t, "http://127.0.0.1:"+freePort(t, "127.0.0.1"))
	c := e.apiserver(dataDir(t))
	elected := []string{"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s",
		"--leader-elect-retry-period=300ms"}
	parts := c.components(map[string][]string{"controllers": elected, "scheduler": elected})
	parts["etcd"], parts["apiserver"] = e.process, c.server
	c.nodesReady()
	clocks := map[string]*wallclock.Clock{}
	for name, p := range parts {
		clock, err := wallclock.Of(p.cmd.Process.Pid)
		if err != nil {
			t.Skip("SKIPPED: the clock of a process cannot be set here: ", err)
		}
		t.Cleanup(func() { _ = clock.Close() })
		clocks[name] = clock
	}
	ahead := time.Hour
	for i, name := range []string{"etcd", "apiserver", "controllers", "scheduler", "node"} {
		for _, jump := range []time.Duration{ahead, -ahead} {
			require.NoError(t, clocks[name].Step(jump))
			c.runsPod(fmt.Sprintf("%s-%d", name, i*2+int(jump/time.Hour)))
		}
		require.NoError(t, clocks[name].Step(ahead))
		ahead = -ahead // neighbours are two hours apart
	}
	c.lives()
	for name, p := range parts {
		require.True(t, p.running() || name == "apiserver", "%s has ended: %s", name, p.out.String())
	}
}

func processRuntime(t *testing.T) {
	needRoot(t, "--runtime process")
	if err := exec.Command("unshare", "--mount", "--pid", "--net", "--uts", "--fork", "true").Run(); err != nil {
		t.Skip("SKIPPED: --runtime process needs namespaces, which this machine does not allow: ", err)
	}
	podnetwork.Lock(t)
	c := up(t, launch{}, dataDir(t), "--runtime", "process", "--nodes", "1")
	c.nodes = 1
	c.lives()
	c.server.interrupt()
}
