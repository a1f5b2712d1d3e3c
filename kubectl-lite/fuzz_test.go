package kubectllite

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzColumns checks that columns are an error, or print a line of headers and at least one line for the object.
func FuzzColumns(f *testing.F) {
	for _, text := range []string{
		"NAME:metadata.name", "NAME:.metadata.name,IMAGE:{.spec.containers[*].image}", "A:", "A", "A:{", "A:[", ":",
		"A:.spec.containers[?(@.name=='c')].image", "A:.metadata.labels.app\\.kubernetes\\.io/name", "A:..name",
		"A:.spec.containers[-1:0:0]", "A:.spec.containers[99999999999999999999]", "A:.spec.containers[0:2:-1].name",
	} {
		f.Add(text)
	}
	pod := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "web"},
		"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}, map[string]any{}}}}}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := newColumnPrinter("custom-columns", text, false)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if p.PrintObj(pod, &out) == nil && strings.Count(out.String(), "\n") < 2 {
			t.Fatalf("%q prints %q", text, out.String())
		}
	})
}
