package testenv_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/coxswain-dev/coxswain/testenv"
)

const boats = `apiVersion: v1
kind: ConfigMap
metadata: {name: is-no-definition}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Boat, plural: boats}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {oars: {type: integer, default: 4}}}}}}
`

const rivers = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
	"metadata": {"name": "rivers.example.com"}, "spec": {"group": "example.com", "scope": "Cluster",
	"names": {"kind": "River", "plural": "rivers"}, "versions": [{"name": "v1", "served": true, "storage": true,
	"schema": {"openAPIV3Schema": {"type": "object"}}}]}}`

// The kinds can be used, and discovery lists them, as soon as Start has returned.
func TestWithCRDs_InstallsFilesAndFolders(t *testing.T) {
	t.Parallel()
	file, folder := writeFile(t, "boats.yaml", boats), filepath.Dir(writeFile(t, "rivers.json", rivers))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "notes.txt"), []byte("not a manifest"), 0o600))
	config := testenv.Start(t, testenv.APIServerOnly(), testenv.WithCRDs(file), testenv.WithCRDs(folder))

	resources, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerResourcesForGroupVersion("example.com/v1")
	require.NoError(t, err)
	require.Len(t, resources.APIResources, 2)
	boat := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Boat",
		"metadata": map[string]any{"name": "eight"}, "spec": map[string]any{}}}
	boat, err = dynamic.NewForConfigOrDie(config).
		Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "boats"}).
		Namespace("default").Create(t.Context(), boat, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]any{"oars": int64(4)}, boat.Object["spec"])
}

func TestWithCRDs_ReportsErrors(t *testing.T) {
	t.Parallel()
	const rivals = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
	"metadata": {"name": "rivals.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
	"names": {"kind": "Boat", "plural": "rivals"}, "versions": [{"name": "v1", "served": true, "storage": true,
	"schema": {"openAPIV3Schema": {"type": "object"}}}]}}`
	for message, paths := range map[string][]string{
		"no such file":                    {"nowhere.yaml"},
		"has no CustomResourceDefinition": {t.TempDir()},
		"spec.scope":                      {writeFile(t, "a.yaml", `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "a.b.example"}}`)},
		"json":                            {writeFile(t, "a.json", `{"kind": `)},
		"is already in use":               {writeFile(t, "a.yaml", boats), writeFile(t, "b.json", rivals)},
	} {
		_, _, err := testenv.New(testenv.APIServerOnly(), testenv.WithCRDs(paths...))
		require.ErrorContains(t, err, message)
	}
}

// writeFile writes a file into a folder of its own, and returns its path.
func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
