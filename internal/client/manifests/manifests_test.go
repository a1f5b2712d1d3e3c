package manifests_test

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/internal/client/manifests"
)

func TestSource_ReadsFilesFoldersAndGo(t *testing.T) {
	t.Parallel()
	source := manifests.FromGo(corev1.SchemeGroupVersion, "ConfigMap",
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "made"}})
	definition := func(name string) string {
		return "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: " + name + "}\n"
	}
	source.FS = fstest.MapFS{
		"one.txt":         {Data: []byte(definition("one"))}, // a file that is named itself may have any name
		"all/two.yaml":    {Data: []byte(definition("two") + "---\nkind: ConfigMap\n---\n" + definition("three"))},
		"all/notes.txt":   {Data: []byte("no manifest")},
		"all/in/four.yml": {Data: []byte(definition("four"))},
		"bad/five.json":   {Data: []byte(`{"kind": `)},
	}
	source.Paths = []string{"one.txt", "all"}
	found, err := source.Read(manifests.Definition, manifests.IsDefinition)
	require.NoError(t, err)
	var names []string
	for _, o := range found {
		names = append(names, o.GetName())
	}
	require.Equal(t, []string{"made", "one", "two", "three"}, names)

	for path, message := range map[string]string{"all/in/none.yaml": "does not exist", "bad": "bad/five.json",
		"all/notes.txt": "read CustomResourceDefinition", "all/in": ""} {
		source.Paths = []string{path}
		_, err := source.Read(manifests.Definition, manifests.IsDefinition)
		if message == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, message)
	}
	source.FS = fstest.MapFS{"empty/a.yaml": {Data: []byte("kind: ConfigMap\n")}}
	source.Paths = []string{"empty"}
	_, err = source.Read(manifests.Definition, manifests.IsDefinition)
	require.EqualError(t, err, "empty has no CustomResourceDefinition")
}
