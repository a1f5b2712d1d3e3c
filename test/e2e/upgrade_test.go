//go:build e2e

package e2e

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestUpgrade_OpensDataOfEarlierVersions starts on data directories that earlier versions wrote; the name of each
// archive is its commit. They contain etcd, the CAs, an encryption configuration, and a list of all objects. A change
// of the stored format adds an archive of the commit before it.
func TestUpgrade_OpensDataOfEarlierVersions(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob("testdata/upgrade/*.tar.gz")
	require.NoError(t, err)
	require.NotEmpty(t, archives)
	for _, archive := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(archive), ".tar.gz"), func(t *testing.T) {
			t.Parallel()
			dir := dataDir(t)
			unpack(t, archive, dir)
			encrypted := "--encryption-provider-config=" + filepath.Join(dir, "encryption.yaml")
			c := serving(t, start(t, "apiserver", "--data-dir", dir, "--secure-port", "0", encrypted), dir)
			requireStored(t, c, filepath.Join(dir, "objects.txt"))
			c.server.interrupt()

			c = up(t, dir, "--nodes", "2", encrypted)
			c.run(kubectl, "--namespace=kept", "set", "image", "deployment/web", "c=web:3")
			c.run(kubectl, "--namespace=kept", "rollout", "status", "deployment/web", "--timeout=1m")
			eventually(t, time.Minute, "the old pods are gone", func() bool {
				return c.run(kubectlLite, "--namespace=kept", "get", "pods", "-l", "app=web", "-o",
					"jsonpath={.items[*].spec.containers[0].image}") == "web:3 web:3 web:3"
			})
			c.server.interrupt()
		})
	}
}

// requireStored requires that every object of the list exists with its UID, that the content is unchanged, and that
// every kind can be written.
func requireStored(t *testing.T, c *cluster, list string) {
	t.Helper()
	content, err := os.ReadFile(list)
	require.NoError(t, err)
	want := strings.Split(strings.TrimSpace(string(content)), "\n")
	resources := strings.Fields(c.run(kubectl, "api-resources", "--verbs=list", "-o", "name"))
	resources = slices.DeleteFunc(resources, func(r string) bool {
		return strings.Contains(r, "metrics.k8s.io") || r == "componentstatuses"
	})
	have := strings.Split(c.run(kubectl, "get", strings.Join(resources, ","), "--all-namespaces", "-o",
		`go-template={{range .items}}{{.apiVersion}} {{.kind}} {{with .metadata.namespace}}{{.}}{{else}}-{{end}} `+
			`{{.metadata.name}} {{.metadata.uid}}{{"\n"}}{{end}}`), "\n")
	var missing []string
	for _, line := range want {
		if !slices.Contains(have, line) {
			missing = append(missing, line)
		}
	}
	require.Empty(t, missing)
	for what, value := range map[string]string{
		"secret secret -o jsonpath={.data.password}":                               "a2VwdC1zZWNyZXQ=",
		"configmap config -o jsonpath={.data.key}{.binaryData.bytes}":              "kept-configAAECAw==",
		"configmap passing -o jsonpath={.metadata.annotations.coxswain\\.dev/ttl}": "87600h",
		"boat kept -o jsonpath={.spec.crew}{.spec.name}{.metadata.finalizers}":     `8none["example.com/kept"]`,
		"deployment web -o jsonpath={.spec.template.spec.containers[0].image}":     "web:2",
		"hpa web -o jsonpath={.spec.maxReplicas}":                                  "5",
	} {
		require.Equal(t, value, c.run(kubectlLite, append([]string{"--namespace=kept", "get"},
			strings.Fields(what)...)...), what)
	}
	c.run(kubectl, "--namespace=kept", "label", "--all",
		"secrets,configmaps,serviceaccounts,deployments,replicasets,statefulsets,daemonsets,jobs,cronjobs,services,"+
			"ingresses,networkpolicies,hpa,pdb,resourcequotas,limitranges,roles,rolebindings,pods,pvc,boats",
		"upgraded=yes")
}

// unpack extracts an archive to a new folder that only this user can read.
func unpack(t *testing.T, archive, dir string) {
	t.Helper()
	f, err := os.Open(archive)
	require.NoError(t, err)
	defer f.Close()
	plain, err := gzip.NewReader(f)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	for files := tar.NewReader(plain); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		if header.Typeflag != tar.TypeReg {
			continue
		}
		require.NoError(t, root.MkdirAll(filepath.Dir(header.Name), 0o700))
		content, err := io.ReadAll(files)
		require.NoError(t, err)
		require.NoError(t, root.WriteFile(header.Name, content, 0o600))
	}
}
