//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/internal/kubeversion"
)

// TestApplySet_IsUsedByBothClientsInTurns lets kubectl-lite begin a set that kubectl and kubectl-lite then prune.
func TestApplySet_IsUsedByBothClientsInTurns(t *testing.T) {
	t.Parallel()
	c := up(t, dataDir(t), "--nodes", "0")
	dir := t.TempDir()
	apply := func(client string, names []string, flags ...string) string {
		t.Helper()
		manifest := ""
		for _, name := range names {
			manifest += "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\n"
		}
		path := filepath.Join(dir, "set.yaml")
		require.NoError(t, os.WriteFile(path, []byte(manifest), 0o600))
		return c.run("env", append([]string{"KUBECTL_APPLYSET=true", client, "apply", "-n", "default", "--prune",
			"--applyset=shop", "-f", path}, flags...)...)
	}
	left := func() string {
		return c.run(kubectl, "get", "configmaps", "-l", "applyset.kubernetes.io/part-of", "-o", "name")
	}
	c.run(kubectl, "create", "configmap", "alone")
	require.Equal(t, "configmap/one created\nconfigmap/two created\nconfigmap/three created\n",
		apply(kubectlLite, []string{"one", "two", "three"}))
	parent, err := c.client.CoreV1().Secrets("default").Get(t.Context(), "shop", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "kubectl/"+kubeversion.Release, parent.Annotations["applyset.kubernetes.io/tooling"])

	require.Equal(t, "configmap/one unchanged\nconfigmap/two unchanged\nconfigmap/three pruned\n",
		apply(kubectl, []string{"one", "two"}))
	for mode, words := range map[string]string{"client": " (dry run)\n", "server": " (server dry run)\n"} {
		require.Equal(t, "configmap/one unchanged"+words+"configmap/two pruned"+words,
			apply(kubectlLite, []string{"one"}, "--dry-run="+mode))
		require.Equal(t, "configmap/one\nconfigmap/two\n", left())
	}
	require.Equal(t, "configmap/one serverside-applied\nconfigmap/two pruned\n",
		apply(kubectlLite, []string{"one"}, "--server-side"))
	require.Equal(t, "configmap/one\n", left())
	c.run(kubectl, "get", "configmap", "alone")

	c.run(kubectl, "annotate", "secret", "shop", "--overwrite", "applyset.kubernetes.io/tooling=helm/v3")
	_, stderr, err := c.try("env", "KUBECTL_APPLYSET=true", kubectlLite, "apply", "-n", "default", "--prune",
		"--applyset=shop", "-f", filepath.Join(dir, "set.yaml"))
	require.Error(t, err)
	require.Contains(t, stderr, `is managed by tooling "helm" instead of "kubectl"`)
}
