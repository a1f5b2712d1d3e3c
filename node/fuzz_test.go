package node

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// FuzzStaticPods checks that a manifest is rejected, or is one pod with a name and the hash of its text.
func FuzzStaticPods(f *testing.F) {
	for _, text := range []string{
		"", "{}", "null", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: &a {containers: [*a]}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: web, annotations: null}\nspec: {overhead: {memory: 1e-999999999}}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {overhead: {memory: 1e6999999999}}\n",
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{"kubernetes.io/config.mirror":"x"}}}`,
		"a: &a xxxxxxxx\nb: [*a, *a, *a, *a]\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "pod.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		pods, err := readStaticPods(dir)
		if err != nil {
			return
		}
		if len(pods) != 1 || pods[0].Name == "" || len(pods[0].Annotations[corev1.MirrorPodAnnotationKey]) != 32 {
			t.Fatalf("%q is %v", text, pods)
		}
	})
}
