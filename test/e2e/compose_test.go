//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCompose builds the image from the binaries under test, brings up a control plane of containers and runs the tour
// on it. It then takes it down and up again with controllers that sign certificates, and requires that no trace is
// left.
func TestCompose(t *testing.T) {
	t.Parallel()
	compose := composeCommand(t)
	port := freePort(t)
	environment := append(os.Environ(), "COXSWAIN_PORT="+port, "COMPOSE_PROJECT_NAME=coxswain-e2e-"+port,
		"COXSWAIN_IMAGE=coxswain:e2e-"+port)
	run := func(ctx context.Context, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = environment
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		require.NoError(t, cmd.Run(), "%s %v:\n%s%s", name, args, &out, &errs)
		return out.String()
	}
	files := []string{"-f", "../../deploy/compose.yaml"}
	do := func(ctx context.Context, args ...string) string {
		t.Helper()
		return run(ctx, compose[0], slices.Concat(compose[1:], files, args)...)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if t.Failed() {
			t.Log(do(ctx, "logs", "--no-color", "--tail", "40"))
		}
		do(ctx, "down", "--volumes", "--timeout", "10")
		run(ctx, "docker", "image", "rm", "coxswain:e2e-"+port)
	})
	kubeconfig := filepath.Join(t.TempDir(), "admin.kubeconfig")
	connected := func() *cluster {
		require.NoError(t, os.WriteFile(kubeconfig, []byte(run(t.Context(), "../../deploy/kubeconfig")), 0o600))
		return connect(t, kubeconfig)
	}

	do(t.Context(), "up", "--build", "--detach")
	c := connected()
	require.True(t, strings.HasSuffix(c.config.Host, ":"+port), c.config.Host)
	c.tour(kubectl, "tour")
	c.run(kubectlLite, "create", "configmap", "kept")
	require.Equal(t, "ok", strings.TrimSpace(c.run(kubectlLite, "get", "--raw", "/api/v1/nodes/node-0/proxy/healthz")))
	eventually(t, time.Minute, "all five services are healthy", func() bool {
		ids := strings.Fields(do(t.Context(), "ps", "-q"))
		states := run(t.Context(), "docker",
			append([]string{"inspect", "--format", "{{if .State.Health}}{{.State.Health.Status}}{{end}}"}, ids...)...)
		return strings.Count(states, "healthy\n") == 5 && !strings.Contains(states, "unhealthy")
	})

	health := c.run(kubectlLite, "get", "componentstatuses", "-o", "jsonpath={.items[*].conditions[*].status}")
	require.Equal(t, "True True True", health)
	require.Contains(t, do(t.Context(), "logs", "--no-color", "controllers"), "controllers started")

	certs := strings.TrimSpace(do(t.Context(), "ps", "--all", "-q", "certs"))
	for component, files := range map[string][]string{
		"etcd":        {"etcd/ca.crt", "etcd/peer.crt", "etcd/peer.key", "etcd/server.crt", "etcd/server.key"},
		"controllers": {"ca.crt", "controllers.kubeconfig"},
		"scheduler":   {"scheduler.kubeconfig"},
		"node":        {"node.kubeconfig"},
	} {
		require.Equal(t, files, privateFiles(t, run(t.Context(), "docker", "cp", certs+":/for/"+component, "-")),
			component)
	}

	do(t.Context(), "down", "--timeout", "10")
	files = append(files, "-f", "../../deploy/compose.signing.yaml")
	do(t.Context(), "up", "--detach")
	c = connected()
	c.run(kubectlLite, "get", "configmap", "kept")
	require.NoError(t, os.WriteFile(kubeconfig+".secret", []byte(`{"apiVersion": "v1", "kind": "Secret",
		"type": "kubernetes.io/service-account-token",
		"metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": "default"}}}`), 0o600))
	c.run(kubectlLite, "create", "-f", kubeconfig+".secret")
	eventually(t, time.Minute, "the controllers sign a token, and the node's certificate, which is verified", func() bool {
		token := c.run(kubectlLite, "get", "secret", "token", "-o", "jsonpath={.data.token}")
		health, _, _ := c.try(kubectlLite, "get", "--raw", "/api/v1/nodes/node-0/proxy/healthz")
		return token != "" && strings.TrimSpace(health) == "ok"
	})
}

// privateFiles returns the files of a component's archive, except its data. Each must be readable by one user only, and
// that must not be root.
func privateFiles(t *testing.T, archive string) []string {
	t.Helper()
	var files []string
	for all := tar.NewReader(strings.NewReader(archive)); ; {
		header, err := all.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(files)
			return files
		}
		require.NoError(t, err)
		require.Zero(t, header.Mode&0o077, "%s: %o", header.Name, header.Mode)
		require.NotZero(t, header.Uid, "%s is root's", header.Name)
		_, name, _ := strings.Cut(header.Name, "/")
		if header.Typeflag == tar.TypeReg && !strings.HasPrefix(name, "data/") {
			files = append(files, name)
		}
	}
}

// needDocker skips the test if docker does not respond.
func needDocker(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: docker does not respond here: %v: %s", err, tail(string(out), 200))
	}
}

// composeCommand returns the command line of compose; without docker the test is skipped.
func composeCommand(t *testing.T) []string {
	t.Helper()
	needDocker(t)
	if exec.Command("docker", "compose", "version").Run() == nil {
		return []string{"docker", "compose"}
	}
	if path, err := exec.LookPath("docker-compose"); err == nil {
		return []string{path}
	}
	t.Skip("SKIPPED: neither docker compose nor docker-compose is installed here")
	return nil
}
