//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestScheduler_HonorsItsConfiguration runs `coxswain scheduler --config` with profiles that differ in their plugins and
// in the arguments of a plugin.
func TestScheduler_HonorsItsConfiguration(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c := serving(t, start(t, "apiserver", "--data-dir", dir, "--secure-port", "0"), dir)
	c.component("controllers")
	c.component("node", "--nodes", "3")
	c.component("scheduler", "--config", "testdata/scheduler.yaml")
	c.nodesReady(3)
	c.withAccount()
	pods := func(profile string, names ...string) {
		for _, name := range names {
			_, err := c.kubectlWith(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec":
				{"schedulerName": %q, "containers": [{"name": "c", "image": "any", "resources": {"requests":
				{"cpu": "10m"}}}]}}`, name, profile), "create", "-f", "-")
			require.NoError(t, err)
			if profile != "default-scheduler" {
				c.kubectl("wait", "--for=condition=ready", "pod/"+name, "--timeout=50s")
			}
		}
	}
	pods("packing", "a", "b", "c", "d")
	nodes := map[string]bool{}
	for node := range strings.FieldsSeq(c.kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}")) {
		nodes[node] = true
	}
	require.Len(t, nodes, 1, "MostAllocated packs pods onto one node")

	c.kubectl("taint", "nodes", "--all", "example.com/no=x:NoSchedule")
	pods("default-scheduler", "stays")
	c.prints("3 node(s) had untolerated taint", "get", "pod", "stays", "-o",
		`jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
	pods("blind", "goes") // without TaintToleration
}

// TestScheduler_RejectsAnInvalidConfiguration expects the path of the field in the error.
func TestScheduler_RejectsAnInvalidConfiguration(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	serving(t, start(t, "apiserver", "--data-dir", dir, "--secure-port", "0"), dir)
	text, err := os.ReadFile("testdata/scheduler.yaml")
	require.NoError(t, err)
	for from, c := range map[string]struct{ to, want string }{
		"percentageOfNodesToScore: 50": {"percentageOfNodesToScore: 500", "percentageOfNodesToScore"},
		"name: TaintToleration":        {"name: TaintTolerations", "TaintTolerations"},
		"type: MostAllocated":          {"type: Fullest", "scoringStrategy"},
		"schedulerName: blind":         {"schedulerNames: blind", "schedulerNames"},
	} {
		file := filepath.Join(t.TempDir(), "scheduler.yaml")
		require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), from, c.to, 1)), 0o600))
		p := start(t, "scheduler", "--kubeconfig", filepath.Join(dir, "scheduler.kubeconfig"), "--metrics-bind-address",
			"", "--config", file)
		p.waitExit(20 * time.Second)
		require.Error(t, p.err, from)
		require.Contains(t, p.out.String(), "Error: --config "+file+": ", from)
		require.Contains(t, p.out.String(), c.want, from)
	}
}
