//go:build e2e

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// snapshot runs coxswain snapshot.
func (c *cluster) snapshot(args ...string) string {
	c.t.Helper()
	return c.run(coxswain, append([]string{"snapshot"}, args...)...)
}

// state returns the pods, Deployments, ReplicaSets and Namespaces, with their uids.
func (c *cluster) state() string {
	c.t.Helper()
	return c.run(kubectl, "get", "pods,deployments,replicasets,namespaces", "-A", "--no-headers",
		"-o", "custom-columns=KIND:.kind,NS:.metadata.namespace,NAME:.metadata.name,UID:.metadata.uid")
}

func TestSnapshot_RestoresAPreparedClusterWhileItRuns(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c := up(t, dir)
	c.nodesReady(3)
	c.run(kubectl, "apply", "-f", guestbook)
	c.run(kubectl, "rollout", "status", "deployment/guestbook", "--timeout=60s")
	prepared := c.state()
	c.snapshot("save", "prepared")
	info, err := os.Stat(filepath.Join(dir, "snapshots", "prepared.snapshot"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	w, err := c.client.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	defer w.Stop()

	for range 3 {
		c.run(kubectl, "delete", "deployment", "guestbook")
		c.run(kubectl, "create", "namespace", "other")
		c.run(kubectl, "create", "deployment", "x", "-n", "other", "--image=x", "--replicas=20")
		c.run(kubectl, "rollout", "status", "-n", "other", "deployment/x", "--timeout=60s")
		require.Contains(t, c.snapshot("reset", "prepared"), "reset to snapshot prepared: ")
		require.Equal(t, prepared, c.state())
	}
	deleted := 0
	for event := range w.ResultChan() { // the watch has gone on
		if event.Type == watch.Deleted {
			deleted++
		}
		if deleted == 3 {
			break
		}
	}
	c.run(kubectl, "rollout", "restart", "deployment/guestbook")
	c.run(kubectl, "rollout", "status", "deployment/guestbook", "--timeout=60s")
	c.snapshot("load", "prepared")
	require.Equal(t, prepared, c.state())
	require.Contains(t, c.snapshot("list"), "prepared")

	c.server.interrupt()
	c = up(t, dir)
	c.nodesReady(3)
	c.run(kubectl, "delete", "deployment", "guestbook")
	c.snapshot("reset", "prepared")
	require.Equal(t, prepared, c.state())
	c.snapshot("delete", "prepared")
	_, stderr, err := c.try(coxswain, "snapshot", "load", "prepared")
	require.Error(t, err)
	require.Contains(t, stderr, "there is no snapshot prepared")
	_, stderr, err = c.try(coxswain, "snapshot", "save", "../x")
	require.Error(t, err)
	require.Contains(t, stderr, "is not a name of a snapshot")
	require.Empty(t, c.server.out.String()[strings.LastIndex(c.server.out.String(), "scratch.")+len("scratch.\n"):],
		"controllers and nodes log no trouble")
}

// TestSnapshot_AKilledLoadLeavesOneOfTheStates kills the server at a random moment while it loads snapshots in turn.
func TestSnapshot_AKilledLoadLeavesOneOfTheStates(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	const objects = 2000
	for round := range 4 {
		c := up(t, dir, "--nodes", "0")
		if round == 0 {
			for _, state := range []string{"one", "two"} {
				var manifest strings.Builder
				for i := range objects {
					fmt.Fprintf(&manifest, "{apiVersion: v1, kind: ConfigMap, metadata: {name: m%d}, data: {state: %s}}\n---\n",
						i, state)
				}
				file := filepath.Join(t.TempDir(), "maps.yaml")
				require.NoError(t, os.WriteFile(file, []byte(manifest.String()), 0o600))
				c.run(kubectlLite, "apply", "--server-side", "-f", file)
				c.snapshot("save", state)
			}
		}
		all := c.run(kubectlLite, "get", "configmaps", "-o", "jsonpath={.items[*].data.state}")
		one, two := strings.Count(all, "one"), strings.Count(all, "two")
		require.Equal(t, objects, one+two)
		require.True(t, one == 0 || two == 0, "%d of one state, and %d of the other", one, two)
		loader := exec.Command("sh", "-c", `while "$0" snapshot load one && "$0" snapshot load two; do :; done`, coxswain)
		loader.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
		require.NoError(t, loader.Start())
		timer := time.NewTimer(time.Duration(200+rand.IntN(800)) * time.Millisecond)
		<-timer.C
		c.server.kill()
		_ = loader.Wait()
	}
}

func TestSnapshot_OfATestServerIsInMemory(t *testing.T) {
	t.Parallel()
	p := start(t, "test-server", "--json")
	eventually(t, time.Minute, "the server is ready", func() bool { return strings.Contains(p.out.String(), "\n") })
	c := connect(t, readTestServer(t, p.out.String()).Kubeconfig)
	c.run(kubectl, "apply", "-f", guestbook)
	c.run(kubectl, "rollout", "status", "deployment/guestbook", "--timeout=60s")
	prepared := c.state()
	code, body := c.do("PUT", "/debug/snapshots/base", "", nil)
	require.Equal(t, 200, code, body)
	c.run(kubectl, "delete", "deployment", "guestbook")
	code, body = c.do("POST", "/debug/snapshots/base/reset", "", nil)
	require.Equal(t, 200, code, body)
	require.Equal(t, prepared, c.state())
	require.Contains(t, c.snapshot("list"), "base")
}
