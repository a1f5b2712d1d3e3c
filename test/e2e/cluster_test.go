//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is a serving API server with its clients.
type cluster struct {
	t          *testing.T
	server     *process
	kubeconfig string
	config     *rest.Config
	client     kubernetes.Interface
	http       *http.Client
	home       string // of the clients, for their discovery caches
}

// up starts `coxswain up` on a free port and waits until it is ready.
func up(t *testing.T, dir string, args ...string) *cluster {
	t.Helper()
	p := start(t, append([]string{"up", "--data-dir", dir, "--secure-port", "0"}, args...)...)
	return serving(t, p, dir)
}

// serving waits until the process with its data in dir serves the API.
func serving(t *testing.T, p *process, dir string) *cluster {
	t.Helper()
	eventually(t, time.Minute, "the server serves", func() bool {
		require.True(t, p.running(), "the server has ended: %s", p.out.String())
		return strings.Contains(p.out.String(), " serves ")
	})
	c := connect(t, filepath.Join(dir, "admin.kubeconfig"))
	c.server = p
	eventually(t, time.Minute, "/readyz", func() bool {
		code, _ := c.get("/readyz")
		return code == http.StatusOK
	})
	return c
}

// connect creates clients for a server from its kubeconfig.
func connect(t *testing.T, kubeconfig string) *cluster {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	config.QPS = -1
	c := &cluster{t: t, kubeconfig: kubeconfig, config: config, home: t.TempDir()}
	c.reconnect()
	return c
}

// reconnect recreates the clients from c.config.
func (c *cluster) reconnect() {
	c.t.Helper()
	var err error
	c.client, err = kubernetes.NewForConfig(c.config)
	require.NoError(c.t, err)
	c.http, err = rest.HTTPClientFor(c.config)
	require.NoError(c.t, err)
	c.t.Cleanup(c.http.CloseIdleConnections)
}

// get reads a path; code is 0 if there is no answer.
func (c *cluster) get(path string) (code int, body string) {
	return c.do(http.MethodGet, path, "", nil)
}

// do makes a request; code is 0 if there is no answer.
func (c *cluster) do(method, path, contentType string, body []byte) (code int, answer string) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.config.Host+path, bytes.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	response, err := c.http.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(read)
}

// run runs a client, kubectl or kubectl-lite, requires that it succeeds, and returns its stdout.
func (c *cluster) run(client string, args ...string) string {
	c.t.Helper()
	out, stderr, err := c.try(client, args...)
	require.NoError(c.t, err, "%s %s:\n%s%s", filepath.Base(client), strings.Join(args, " "), out, stderr)
	return out
}

// try runs a client that may fail.
func (c *cluster) try(client string, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, client, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HOME="+c.home)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// nodesReady waits until the cluster has n Nodes, all Ready.
func (c *cluster) nodesReady(n int) {
	c.t.Helper()
	eventually(c.t, time.Minute, "all nodes are ready", func() bool {
		out, _, err := c.try(kubectlLite, "get", "nodes", "--no-headers")
		return err == nil && strings.Count(out, " Ready ") == n
	})
}
