//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
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
)

// testServer is the output of `coxswain test-server --json`.
type testServer struct {
	Endpoint, CA, Token, Kubeconfig string
	PID                             int
}

func readTestServer(t *testing.T, line string) testServer {
	t.Helper()
	var at testServer
	require.NoError(t, json.Unmarshal([]byte(line), &at), line)
	return at
}

// gone waits until the server has ended, and requires that it left no file.
func (s testServer) gone(t *testing.T) {
	t.Helper()
	eventually(t, 10*time.Second, "the server ends", func() bool {
		return syscall.Kill(s.PID, 0) != nil
	})
	require.NoDirExists(t, filepath.Dir(s.Kubeconfig))
}

// When the server prints its address, it is ready: the Node is Ready and the kinds of --crds are served.
func TestTestServer_IsReadyWhenItPrintsItsAddress(t *testing.T) {
	t.Parallel()
	p := start(t, "test-server", "--json", "--crds", "../../examples/operator/manifests", "--nodes", "2",
		"--node-prefix", "worker-")
	eventually(t, time.Minute, "the server is ready", func() bool { return strings.Contains(p.out.String(), "\n") })
	server := readTestServer(t, p.out.String())
	require.Equal(t, p.cmd.Process.Pid, server.PID)
	c := connect(t, server.Kubeconfig)
	require.Contains(t, c.run(kubectl, "get", "nodes"), "worker-1   Ready")
	require.Empty(t, c.run(kubectl, "get", "sites"), "the kind is served; kubectl reports the empty list on stderr")
	// A client without a kubeconfig needs the other three fields.
	c.config.CertData, c.config.KeyData, c.config.CAData = nil, nil, nil
	c.config.CAFile, c.config.BearerToken, c.config.Host = server.CA, server.Token, server.Endpoint
	c.reconnect()
	code, body := c.get("/api/v1/namespaces/default")
	require.Equal(t, http.StatusOK, code, body)
	p.interrupt()
	server.gone(t)
}

func TestTestServer_EndsWithItsParent(t *testing.T) {
	t.Parallel()
	// The shell waits for another child and is killed by a signal that no trap can catch.
	parent := exec.Command("sh", "-c", "\"$0\" test-server --api-only --json & cat", coxswain)
	in, err := parent.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	server := readTestServer(t, line)
	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	server.gone(t)
}

func TestTestServer_EndsWithStandardInput(t *testing.T) {
	t.Parallel()
	server := exec.Command(coxswain, "test-server", "--api-only", "--json", "--ready-fd=3", "--end-with-stdin")
	in, err := server.StdinPipe()
	require.NoError(t, err)
	ready, theirs, err := os.Pipe()
	require.NoError(t, err)
	defer ready.Close()
	server.ExtraFiles = []*os.File{theirs}
	require.NoError(t, server.Start())
	require.NoError(t, theirs.Close())
	line, err := bufio.NewReader(ready).ReadString('\n')
	require.NoError(t, err)
	info := readTestServer(t, line)
	require.NoError(t, in.Close())
	require.NoError(t, server.Wait())
	info.gone(t)
}

func TestTestServer_PrintsOneLineOfShell(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]string{"kubectl": kubectl, "kubectl-lite": kubectlLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test := exec.Command("sh", "../../examples/test-server/guestbook.sh")
			test.Env = append(os.Environ(), "COXSWAIN="+coxswain, "KUBECTL="+client, "HOME="+t.TempDir())
			out, err := test.CombinedOutput()
			require.NoError(t, err, string(out))
			require.True(t, strings.HasSuffix(string(out), "PASS\n"), string(out))
		})
	}
	out, err := exec.Command("sh", "-c", "eval \"$(\"$0\" test-server --api-only --parent $$ &)\"; echo $COXSWAIN_PID",
		coxswain).Output()
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	require.NoError(t, err)
	eventually(t, 10*time.Second, "the server ends with the shell", func() bool { return syscall.Kill(pid, 0) != nil })
}

func TestTestServer_RejectsFoldersWithoutDefinitions(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(coxswain, "test-server", "--api-only", "--crds", "../../examples/guestbook").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "--crds: ../../examples/guestbook has no CustomResourceDefinition")
}
