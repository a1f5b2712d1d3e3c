//go:build e2e

package linearizability

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// patience is how long a test waits for an expected event. It is not a measurement.
const patience = time.Minute

// faults returns the number of faults that a test injects.
func faults(t *testing.T, short int) int {
	t.Helper()
	soak := os.Getenv("COXSWAIN_SOAK")
	if soak == "" {
		return short
	}
	n, err := strconv.Atoi(soak)
	require.NoError(t, err, "COXSWAIN_SOAK")
	return n
}

// process is a process of ours that can be killed, paused and started again with the same arguments.
type process struct {
	t    *testing.T
	name string
	args []string
	log  string
	cmd  *exec.Cmd
}

func newProcess(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, args: args, log: filepath.Join(t.TempDir(), name+".log")}
	t.Cleanup(func() {
		p.kill()
		if !t.Failed() {
			return
		}
		if log, err := os.ReadFile(p.log); err == nil {
			lines := strings.Split(strings.TrimSpace(string(log)), "\n")
			t.Logf("the last lines of %s:\n%s", p.name, strings.Join(lines[max(0, len(lines)-15):], "\n"))
		}
	})
	return p
}

func (p *process) start() {
	p.t.Helper()
	bin := os.Getenv("COXSWAIN_BIN")
	require.NotEmpty(p.t, bin, "COXSWAIN_BIN is the folder of the binaries to test")
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(p.t, err)
	defer log.Close()
	p.cmd = exec.Command(filepath.Join(bin, "coxswain"), p.args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	require.NoError(p.t, p.cmd.Start())
}

// kill kills the process with kill -9, and waits until it is gone.
func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // even if it ended by itself
	_ = p.cmd.Wait()
	p.cmd = nil
}

func (p *process) pause()  { p.signal(syscall.SIGSTOP) }
func (p *process) resume() { p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s), p.name)
}

// freePort returns a port for a process that can be used again after a kill.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// server is an API server with its administrator's client.
type server struct {
	*process
	url    string
	config *rest.Config
}

func startServer(t *testing.T, name string, args ...string) *server {
	t.Helper()
	dir, port := t.TempDir(), strconv.Itoa(freePort(t))
	args = append([]string{"apiserver", "--data-dir", dir, "--secure-port", port}, args...)
	s := &server{process: newProcess(t, name, args...), url: "https://127.0.0.1:" + port}
	s.start()
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	require.Eventually(t, func() bool {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		s.config = config
		return err == nil
	}, patience, 10*time.Millisecond)
	s.awaitReady()
	return s
}

// client returns a client with connections of its own, so that a blocked one does not affect others.
func (s *server) client() *http.Client {
	s.t.Helper()
	config, err := rest.TLSConfigFor(s.config)
	require.NoError(s.t, err)
	return &http.Client{Timeout: requestTimeout, Transport: transport(config)}
}

// watcher returns a client without a timeout, for watches.
func (s *server) watchClient() *http.Client {
	c := s.client()
	c.Timeout = 0
	return c
}

func transport(config *tls.Config) *http.Transport {
	return &http.Transport{
		TLSClientConfig:   config,
		ForceAttemptHTTP2: false,
		DialContext:       (&net.Dialer{Timeout: requestTimeout}).DialContext,
	}
}

// requestTimeout is short, so that clients of a paused server soon continue with another request.
const requestTimeout = 2 * time.Second

func (s *server) awaitReady() {
	s.t.Helper()
	client := s.client()
	defer client.CloseIdleConnections()
	require.Eventually(s.t, func() bool {
		response, err := client.Get(s.url + "/readyz")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	}, patience, 10*time.Millisecond, "%s is never ready", s.name)
}

// startEtcd starts a cluster of three, and returns its members and their client URLs.
func startEtcd(t *testing.T) (members []*process, urls []string) {
	t.Helper()
	const size = 3
	var peers, clients [size]string
	var cluster []string
	for i := range size {
		peers[i] = fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
		clients[i] = fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
		cluster = append(cluster, fmt.Sprintf("etcd-%d=%s", i, peers[i]))
	}
	for i := range size {
		name := fmt.Sprintf("etcd-%d", i)
		m := newProcess(t, name, "etcd", "--name", name, "--data-dir", t.TempDir(),
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
			"--listen-client-urls", clients[i], "--advertise-client-urls", clients[i],
			"--heartbeat-interval", "50", "--election-timeout", "500")
		m.start()
		members = append(members, m)
	}
	return members, clients[:]
}
