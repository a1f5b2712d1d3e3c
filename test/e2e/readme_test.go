//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestReadme_TourRunsAsWritten pastes the blocks of README's tour into a shell, beside a control plane that has
// just reported that it is ready.
func TestReadme_TourRunsAsWritten(t *testing.T) {
	t.Parallel()
	blocks := tourBlocks(t)
	for name, client := range map[string]string{"kubectl": kubectl, "kubectl-lite": kubectlLite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := filepath.EvalSymlinks(t.TempDir())
			require.NoError(t, err)
			for link, target := range map[string]string{"bin": filepath.Dir(coxswain), "examples": "../../examples"} {
				target, err := filepath.Abs(target)
				require.NoError(t, err)
				require.NoError(t, os.Symlink(target, filepath.Join(dir, link)))
			}
			p := start(t, "up", "--data-dir", filepath.Join(dir, ".coxswain"), "--secure-port", "0")
			eventually(t, time.Minute, "the banner", func() bool {
				return p.running() && strings.Contains(p.out.String(), "start from scratch.")
			})
			require.Contains(t, p.out.String(), "export KUBECONFIG="+dir+"/.coxswain/admin.kubeconfig\n")

			script := "set -eu\nkubectl() { '" + client + "' \"$@\"; }\n" + strings.Join(blocks, "\n")
			cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+t.TempDir(), "KUBECONFIG=")
			output, err := cmd.CombinedOutput()
			out := string(output)
			require.NoError(t, err, "%s", out)
			for _, want := range []string{
				"node-2   Ready", "deployment.apps/guestbook   3/3", "\n2         <none>\n3         <none>\n",
				"guestbook   50/50   50",
				"└─ReplicaSet/cache-", "Deployment/cache is ready.", `{"type":"ADDED","object":{"kind":"Pod"`,
				`{"type":"DELETED","object":{"kind":"Pod"`,
				`pod "web" deleted`, `deployment.apps "guestbook" deleted`,
			} {
				require.Contains(t, out, want)
			}
			require.NotContains(t, out, "No resources found")

			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, left, 3, "the tour cleans up: %v", left)
			c := connect(t, filepath.Join(dir, ".coxswain", "admin.kubeconfig"))
			eventually(t, time.Minute, "no pod is left", func() bool {
				pods, err := c.client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
				return err == nil && len(pods.Items) == 0
			})
			p.interrupt()
		})
	}
}

// tourBlocks returns the commands of README's tour, block by block.
func tourBlocks(t *testing.T) []string {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, tour, found := strings.Cut(string(readme), "\n## The tour\n")
	require.True(t, found)
	tour, _, found = strings.Cut(tour, "\n## ")
	require.True(t, found)
	var blocks []string
	for {
		_, rest, found := strings.Cut(tour, "\n```sh\n")
		if !found {
			break
		}
		block, after, found := strings.Cut(rest, "\n```\n")
		require.True(t, found)
		blocks, tour = append(blocks, block), after
	}
	require.Greater(t, len(blocks), 5)
	return blocks
}

// TestMake_UpPassesFlagsAndLeavesACleanTree checks that README's commands create no files that git would add.
func TestMake_UpPassesFlagsAndLeavesACleanTree(t *testing.T) {
	t.Parallel()
	recipe, err := exec.CommandContext(t.Context(), "make", "-n", "-C", "../..", "up",
		"ARGS=--nodes 5").CombinedOutput()
	require.NoError(t, err, "%s", recipe)
	require.Contains(t, string(recipe), "bin/coxswain up --data-dir ./.coxswain --nodes 5\n")
	require.Contains(t, string(recipe), "some minutes")
	written := []string{"bin/coxswain", ".coxswain/pki/ca.key", ".tools/kubectl", "admin.kubeconfig",
		"admin.certificate", "admin.key"}
	ignore := exec.CommandContext(t.Context(), "git", append([]string{"check-ignore"}, written...)...)
	ignore.Dir = "../.."
	ignored, err := ignore.CombinedOutput()
	require.NoError(t, err, "%s", ignored)
	require.ElementsMatch(t, written, strings.Fields(string(ignored)))
}
