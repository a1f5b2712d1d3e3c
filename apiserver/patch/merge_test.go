package patch

import (
	"testing"

	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// The cases of RFC 7396, appendix A, with objects as patch and result, and others.
func TestMergePatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ doc, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		{`{"a":1}`, `{"a":{"b":{"c":null,"d":2}}}`, `{"a":{"b":{"d":2}}}`},
		{`{"a":12345678901234567890}`, `{ "b\"<" : [ null , {"x":null} ] }`,
			`{"a":12345678901234567890,"b\"<":[null,{"x":null}]}`},
		{`{"a":{"b":1}}`, ` {"a": {} } `, `{"a":{"b":1}}`},
	} {
		got, err := Merge([]byte(c.doc), []byte(c.patch))
		require.NoError(t, err)
		require.JSONEq(t, c.want, string(got), "%s + %s", c.doc, c.patch)
	}
	for _, c := range [][2]string{{`{}`, `[]`}, {`{}`, `null`}, {`{}`, `{"a"`}, {`{"a":`, `{}`},
		{`{"a":{"b"}}`, `{"a":{"b":1}}`}, {`{}`, `{"a":{"b"`}, {`{}`, `{"a\`}} {
		_, err := Merge([]byte(c[0]), []byte(c[1]))
		require.Error(t, err, c)
	}
}

var benchmarkDoc = []byte(
	`{"kind":"Pod","metadata":{"name":"web","labels":{"app":"web"},"managedFields":[{"manager":"kubectl",` +
		`"fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{"f:image":{},"f:name":{}}}}}}]},` +
		`"spec":{"containers":[{"name":"web","image":"registry.example.com/web:1","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}]}]}}`)

func BenchmarkMergePatch(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, _ = Merge(benchmarkDoc, []byte(`{"metadata":{"labels":{"app":"shop"}}}`))
	}
}

// BenchmarkMergePatchOfTheLibrary applies the same patch by the library, for comparison.
func BenchmarkMergePatchOfTheLibrary(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, _ = jsonpatch.MergePatch(benchmarkDoc, []byte(`{"metadata":{"labels":{"app":"shop"}}}`))
	}
}
