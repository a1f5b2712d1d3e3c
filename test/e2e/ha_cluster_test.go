//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// haCluster is the control plane of deploy/compose-ha.yaml, as containers of a compose project of its own.
type haCluster struct {
	t           *testing.T
	project     string
	compose     []string
	environment []string
	ports       []string               // of the API servers on this machine
	ids         map[string]string      // of the containers, by service
	config      *rest.Config           // of the administrator, for the first API server
	client      kubernetes.Interface   // uses any API server that answers
	each        []kubernetes.Interface // one for each API server, with a timeout of a second
}

// startHA brings up the control plane, and removes everything at the end of the test.
func startHA(t *testing.T) *haCluster {
	t.Helper()
	compose := composeCommand(t)
	h := &haCluster{t: t, ports: []string{freePort(t), freePort(t), freePort(t)}, ids: map[string]string{}}
	h.project = "coxswain-ha-" + h.ports[0]
	h.compose = append(slices.Clone(compose), "-f", "../../deploy/compose-ha.yaml")
	h.environment = append(os.Environ(), "COMPOSE_PROJECT_NAME="+h.project, "COXSWAIN_IMAGE=coxswain:"+h.project,
		"COXSWAIN_PORT_1="+h.ports[0], "COXSWAIN_PORT_2="+h.ports[1], "COXSWAIN_PORT_3="+h.ports[2])
	t.Cleanup(h.remove)
	h.up("--build")
	return h
}

func (h *haCluster) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if h.t.Failed() {
		out, _ := h.try(ctx, append(h.compose, "logs", "--no-color", "--tail", "30")...)
		h.t.Log(tail(out, 40<<10))
	}
	for _, command := range [][]string{
		append(slices.Clone(h.compose), "down", "--volumes", "--timeout", "5"),
		{"docker", "image", "rm", "coxswain:" + h.project},
	} {
		if out, err := h.try(ctx, command...); err != nil {
			h.t.Errorf("%v: %v: %s", command, err, out)
		}
	}
}

func (h *haCluster) try(ctx context.Context, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = h.environment
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		return out.String() + errs.String(), err
	}
	return out.String(), nil
}

func (h *haCluster) run(command ...string) string {
	h.t.Helper()
	out, err := h.try(h.t.Context(), command...)
	require.NoError(h.t, err, "%v: %s", command, out)
	return strings.TrimSpace(out)
}

func (h *haCluster) docker(args ...string) string {
	h.t.Helper()
	return h.run(append([]string{"docker"}, args...)...)
}

func (h *haCluster) do(args ...string) string {
	h.t.Helper()
	return h.run(append(slices.Clone(h.compose), args...)...)
}

// haServices are the services that run permanently.
var haServices = []string{"etcd-1", "etcd-2", "etcd-3", "apiserver-1", "apiserver-2", "apiserver-3", "controllers-1",
	"controllers-2", "scheduler-1", "scheduler-2", "nodes"}

// up creates and starts missing containers, and creates clients.
func (h *haCluster) up(flags ...string) {
	h.t.Helper()
	h.do(append([]string{"up", "--detach"}, flags...)...)
	for _, service := range append([]string{"certs"}, haServices...) {
		h.ids[service] = h.do("ps", "--all", "-q", service)
	}
	kubeconfig := filepath.Join(h.t.TempDir(), "admin.kubeconfig")
	content := h.run("../../deploy/kubeconfig", "compose-ha.yaml", "apiserver-1")
	require.NoError(h.t, os.WriteFile(kubeconfig, []byte(content), 0o600))
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(h.t, err)
	require.True(h.t, strings.HasSuffix(config.Host, ":"+h.ports[0]), config.Host)
	config.QPS = -1
	h.config = config
	h.client = h.clientFor(h.ports...)
	h.each = nil
	for _, port := range h.ports {
		h.each = append(h.each, h.clientFor(port))
	}
}

// clientFor returns a client that connects to the first server, by port, that accepts a connection, and leaves silent
// connections. A client for a single server limits requests to a second.
func (h *haCluster) clientFor(ports ...string) kubernetes.Interface {
	h.t.Helper()
	security, err := rest.TLSConfigFor(h.config)
	require.NoError(h.t, err)
	security.ServerName = "127.0.0.1"
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var conn net.Conn
		err := net.ErrClosed
		for _, port := range ports {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			dialer := tls.Dialer{Config: security}
			conn, err = dialer.DialContext(ctx, "tcp", "127.0.0.1:"+port)
			cancel()
			if err == nil {
				break
			}
		}
		return conn, err
	}
	security.NextProtos = []string{"h2"}
	transport := &http.Transport{DialTLSContext: dial, ForceAttemptHTTP2: true,
		HTTP2: &http.HTTP2Config{SendPingTimeout: time.Second, PingTimeout: time.Second}}
	h.t.Cleanup(transport.CloseIdleConnections)
	config := rest.CopyConfig(h.config)
	config.TLSClientConfig = rest.TLSClientConfig{}
	if len(ports) == 1 {
		config.Timeout = time.Second
	}
	client, err := kubernetes.NewForConfigAndClient(config, &http.Client{Transport: transport, Timeout: config.Timeout})
	require.NoError(h.t, err)
	return client
}
