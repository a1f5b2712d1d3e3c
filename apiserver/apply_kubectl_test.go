package apiserver_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubectl runs the real kubectl and returns its output.
type kubectl func(manifest string, args ...string) (string, error)

func withKubectl(t *testing.T, s *server) kubectl {
	t.Helper()
	path, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("SKIPPED: there is no kubectl on the PATH; make e2e builds one, and its session \"apply\" moves to " +
			"server-side apply with it")
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: s.config.Host, CertificateAuthorityData: s.config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: s.config.CertData,
		ClientKeyData: s.config.KeyData, Token: s.config.BearerToken}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	return func(manifest string, args ...string) (string, error) {
		args = append(args, "--kubeconfig", file, "--cache-dir", filepath.Join(filepath.Dir(file), "cache"))
		cmd := exec.CommandContext(t.Context(), path, args...)
		cmd.Stdin = strings.NewReader(manifest)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

const webManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: "nginx:1"}]
`

func TestKubectl_AppliesOnTheServer(t *testing.T) {
	t.Parallel()
	run := withKubectl(t, start(t))
	out, err := run(webManifest, "apply", "--server-side", "-f", "-")
	require.NoError(t, err, out)
	require.Equal(t, "deployment.apps/web serverside-applied\n", out)
	out, err = run("", "get", "deployment/web", "-o", "yaml")
	require.NoError(t, err, out)
	require.NotContains(t, out, "managedFields")
	out, err = run("", "get", "deployment/web", "-o", "yaml", "--show-managed-fields")
	require.NoError(t, err, out)
	require.Contains(t, out, "manager: kubectl\n    operation: Apply\n")

	out, err = run("", "scale", "deployment/web", "--replicas=5")
	require.NoError(t, err, out)
	out, err = run(webManifest, "apply", "--server-side", "-f", "-")
	require.Error(t, err)
	require.Contains(t, out,
		`Apply failed with 1 conflict: conflict with "kubectl" with subresource "scale" using apps/v1: .spec.replicas`)
	out, err = run(webManifest, "apply", "--server-side", "--force-conflicts", "-f", "-")
	require.NoError(t, err, out)
	out, err = run("", "get", "deployment/web", "-o", "jsonpath={.spec.replicas}")
	require.NoError(t, err, out)
	require.Equal(t, "2", out)
	out, err = run(webManifest, "diff", "--server-side", "-f", "-")
	require.NoError(t, err, out)
}

func TestKubectl_MovesFromClientSideApply(t *testing.T) {
	t.Parallel()
	run := withKubectl(t, start(t))
	out, err := run(webManifest, "apply", "-f", "-")
	require.NoError(t, err, out)
	moved := strings.Replace(webManifest, "nginx:1", "nginx:2", 1)
	out, err = run(moved, "apply", "--server-side", "-f", "-")
	require.NoError(t, err, "%s", out)
	out, err = run("", "get", "deployment/web", "-o", "yaml", "--show-managed-fields")
	require.NoError(t, err, out)
	require.Contains(t, out, "image: nginx:2")
	require.Contains(t, out, `"image":"nginx:2"`, "the annotation is updated, so that client-side apply still works")
	require.NotContains(t, out, "kubectl-client-side-apply", "kubectl owns the fields")

	// Fields that are no longer in the manifest are removed.
	out, err = run(strings.Replace(moved, "  replicas: 2\n", "", 1), "apply", "--server-side", "-f", "-")
	require.NoError(t, err, out)
	out, err = run("", "get", "deployment/web", "-o", "jsonpath={.spec.replicas}")
	require.NoError(t, err, out)
	require.Equal(t, "1", out, "defaulted again")

	out, err = run(webManifest, "apply", "-f", "-")
	require.NoError(t, err, "back to client-side: %s", out)
}
