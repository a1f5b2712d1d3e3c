package limits

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

func TestExpandYAML_KeepsTheMeaning(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"scalar":             "a: &x 1\nb: *x\n",
		"quoted number":      "a: &x '1'\nb: *x\n",
		"YAML 1.1 booleans":  "a: &x yes\nb: [*x, off, \"off\", 0777, 1_000, 0x1f, .inf2, 1:30]\n",
		"timestamp":          "a: &x 2001-12-14\nb: [*x, 2001-12-14T21:59:43.10-05:00]\n",
		"null":               "a: &x\nb: *x\nc: &y ~\nd: [*y, null, '', \"\"]\n? e\n",
		"tags":               "a: &x !!str 12\nb: [*x, !!int '3', !!float 4, !!binary aGVsbG8=, !!str ]\n",
		"literal":            "a: &x |\n  one\n  two # three\n\nb: *x\nc: >-\n  folded\n  text\n",
		"plain with commas":  "a: &x one, two [three] {four} # five\nb: *x\nc: a]b\n",
		"looks like others":  "a: &x '*x'\nb: ['&x', *x, '? y', '- z', '%', '@', '`', '<<', '! a', '# b']\n",
		"escapes":            "a: &x \"\\x01\\u2028\\U0001F600\\t\\n\\\\\"\nb: *x\n",
		"mapping":            "a: &x {b: 1, c: [d, e]}\nf: *x\n",
		"block":              "a: &x\n  b:\n  - c\n  -\n    - d\n  - {}\n  - []\ne: *x\n",
		"nested":             "a: &x [1]\nb: &y [*x, *x]\nc: [*y, *y]\n",
		"named again":        "a: &x 1\nb: *x\nc: &x 2\nd: *x\n",
		"alias as a key":     "a: &x k\n*x : v\n",
		"merge":              "a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\n",
		"merge of several":   "a: &x {b: 1}\nc: &y {b: 2, d: 3}\ne:\n  <<: [*x, *y]\n  f: 4\n",
		"merge, nested":      "a: &x {b: 1}\nc: &y\n  <<: *x\n  d: 2\ne:\n  <<: *y\n",
		"not a merge":        "a: &x {b: 1}\nc: {'<<': *x}\n",
		"comments":           "# top\na: &x 1 # one\n# two\nb: *x # three\n# end\n",
		"long key":           strings.Repeat("k", 1000) + "z: 1\na: &x 2\nb: *x\n",
		"long flow":          "? " + strings.Repeat("k", 3000) + "\n: &x " + strings.Repeat("v w ", 1000) + "\nb: *x\n",
		"numbers as keys":    "1: &x a\n2.5: *x\ntrue: *x\n",
		"more documents":     "a: &x 1\nb: *x\n---\nc: 1\n",
		"windows":            "a: &x 1\r\nb: *x\r\n",
		"byte order mark":    "\ufeffa: &x 1\nb: *x\n",
		"only looks like it": "script: |\n  a &x *x\n",
	} {
		t.Run(name, func(t *testing.T) {
			want, err := yaml.YAMLToJSON([]byte(text))
			require.NoError(t, err)
			expanded, err := ExpandYAML([]byte(text))
			require.NoError(t, err)
			assert.False(t, mayAlias(expanded) && name != "only looks like it" && name != "looks like others",
				"%s", expanded)
			got, err := yaml.YAMLToJSON(expanded)
			require.NoError(t, err, "%s", expanded)
			assert.JSONEq(t, string(want), string(got), "%s", expanded)
		})
	}
}

func TestExpandYAML_LeavesTextWithoutAliasesAlone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "a: 1", "{", "\t", `{"a": "*b"}`, "a: '*'\nb: '&'", "script: a && b *c", "&a 1", "a: *b",
		"run: |\n  f 2>&1 *.go",
	} {
		expanded, err := ExpandYAML([]byte(text))
		require.NoError(t, err)
		assert.Equal(t, text, string(expanded))
	}
}

func TestExpandYAML_RejectsDocumentsThatGrow(t *testing.T) {
	t.Parallel()
	var doubling, chain, merges strings.Builder
	doubling.WriteString("a0: &a0 x\n")
	chain.WriteString("- &a0 [x]\n")
	merges.WriteString("a0: &a0 {k0: v}\n")
	for i := range 10_000 {
		fmt.Fprintf(&doubling, "a%d: &a%d [*a%d, *a%d]\n", i+1, i+1, i, i)
		fmt.Fprintf(&chain, "- &a%d [*a%d]\n", i+1, i)
		fmt.Fprintf(&merges, "a%d: &a%d {k%d: *a%d, <<: *a%d}\n", i+1, i+1, i+1, i, i)
	}
	long := "a: &a " + strings.Repeat("x", 50_000) + "\n"
	aliases := "b: [" + strings.Repeat("*a,", 20_000) + "]\n"
	for name, text := range map[string]string{
		"one long string": long + aliases,
		"binary":          "a: &a !!binary " + strings.Repeat("eHh4", 12_500) + "\n" + aliases,
		"digits":          "a: &a " + strings.Repeat("1", 50_000) + "\n" + aliases,
		"long keys":       long + "b: {" + strings.Repeat("*a : 1,", 20_000) + "}\n",
		"doubling":        doubling.String(),
		"a long chain":    chain.String(),
		"merges":          merges.String(),
		"merges of one": "a: &a {" + strings.Repeat("x: 1, ", 10_000) + "}\nb:\n" +
			strings.Repeat("- {<<: *a}\n", 10_000),
		"in UTF-16":           string(utf16LE(long + aliases)),
		"the second document": "a: 1\n--- # &a *a\n" + long + aliases,
		"itself":              "a: &a [*a]\n",
		"itself, by others":   "a: &a {b: &b {c: [*a]}}\nd: *b\n",
		"many nodes":          "a: &a 1\nb: [*a, " + strings.Repeat("a,", 1_000_000) + "]",
	} {
		t.Run(name, func(t *testing.T) {
			expanded, err := ExpandYAML([]byte(text))
			if name == "the second document" {
				require.NoError(t, err)
				assert.LessOrEqual(t, len(expanded), 100)
			} else {
				require.Error(t, err)
			}
		})
	}
}

func utf16LE(text string) []byte {
	body := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(text)) {
		body = append(body, byte(unit), byte(unit>>8))
	}
	return body
}

func TestExpandYAML_AllowsDocumentsWithinTheLimit(t *testing.T) {
	t.Parallel()
	text := "a: &a " + strings.Repeat("x", 1000) + "\nb: [" + strings.Repeat("*a,", 2000) + "]\n"
	expanded, err := ExpandYAML([]byte(text))
	require.NoError(t, err)
	assert.Equal(t, 2001, bytes.Count(expanded, []byte(strings.Repeat("x", 1000))))
}

func FuzzExpandYAML(f *testing.F) {
	f.Add("a: &x 1\nb: *x\n")
	f.Add("a: &x {b: [1, ~, '']}\nb: {<<: *x, c: *x}\n# c")
	f.Add("- &a |\n x\n- \"*a\"\n- *a#b\n- &b\n- *b")
	f.Fuzz(func(t *testing.T, text string) {
		// "! 1" is a string to one parser and a number to the other.
		if len(text) > 1000 || strings.Contains(text, "!") {
			return
		}
		expanded, err := ExpandYAML([]byte(text))
		if err != nil || string(expanded) == text {
			return
		}
		if want, err := yaml.YAMLToJSON([]byte(text)); err == nil {
			got, err := yaml.YAMLToJSON(expanded)
			require.NoError(t, err, "%q", expanded)
			assert.Equal(t, string(want), string(got), "%q", expanded)
		}
	})
}

func BenchmarkExpandYAML(b *testing.B) {
	plain := []byte(strings.Repeat("- name: container\n  image: example.com/image:1.0\n  command: [sh, -c, 'ls "+
		"*.go && true']\n", 100))
	b.Run("plain", func(b *testing.B) {
		b.SetBytes(int64(len(plain)))
		for b.Loop() {
			_, _ = ExpandYAML(plain)
		}
	})
	b.Run("YAMLToJSON", func(b *testing.B) {
		b.SetBytes(int64(len(plain)))
		for b.Loop() {
			_, _ = yaml.YAMLToJSON(plain)
		}
	})
}
