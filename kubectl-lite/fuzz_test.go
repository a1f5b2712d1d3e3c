package kubectllite

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FuzzColumns: columns are an error, or a table with a line for the headers and at least one for the object.
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

// FuzzAuditLog: each line of a log is read once and whole, however the reads cut it.
func FuzzAuditLog(f *testing.F) {
	f.Add("a\nb\n\nc", uint8(1))
	f.Add("{\"kind\":\"Event\"}\r\n\x00\n", uint8(3))
	f.Add(strings.Repeat("x", 70_000)+"\ny\n", uint8(200))
	f.Fuzz(func(t *testing.T, text string, piece uint8) {
		var lines []string
		l := &auditLog{line: func(line []byte) error {
			lines = append(lines, string(line))
			return nil
		}}
		for rest := text; rest != ""; {
			n := min(len(rest), int(piece)+1)
			if err := l.continueLine(t.Context(), strings.NewReader(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		var whole []string
		for line := range strings.Lines(text) {
			if trimmed := strings.TrimSpace(line); trimmed != "" && strings.HasSuffix(line, "\n") {
				whole = append(whole, trimmed)
			}
		}
		if !slices.Equal(lines, whole) {
			t.Fatalf("%q of %q", lines, text)
		}
	})
}
