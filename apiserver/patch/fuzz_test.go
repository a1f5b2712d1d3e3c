package patch

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// FuzzMergePatch holds merge patches to the library that kube-apiserver uses.
func FuzzMergePatch(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"a":"b"}`, `{"a":"c"}`}, {`{"a":{"b":"c"}}`, `{"a":{"b":null,"d":[null]}}`}, {`{"a":[1]}`, `{"a":{"b":{}}}`},
		{`{}`, `{"a":{"b":{"c":null}}}`},
		{`{"a\u0062":1}`, `{"ab":null}`}, {`{"a":1,"a":2}`, `{"a":3}`}, {`{"<":1}`, `{"\u003c":2}`},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, doc, patch []byte) {
		if !json.Valid(doc) || !json.Valid(patch) || firstByte(doc) != '{' || firstByte(patch) != '{' ||
			repeatsName(doc) || repeatsName(patch) {
			return // rejected before, or a document that parsers may read differently
		}
		got, err := Merge(doc, patch)
		require.NoError(t, err)
		want, err := jsonpatch.MergePatch(doc, patch)
		require.NoError(t, err)
		require.JSONEq(t, string(want), string(got), "%s + %s", doc, patch)
	})
}

// FuzzStrategic holds strategic merge patches to the library alone.
func FuzzStrategic(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"spec":{"containers":[{"name":"a","env":[{"name":"b"}]}]}}`, `{"spec":{"containers":[{"name":"a","env":null}]}}`},
		{`{"spec":{"containers":[{"name":"a"},{"name":"b"}]}}`,
			`{"spec":{"$setElementOrder/containers":[{"name":"b"},{"name":"a"}],"containers":[{"name":"b","image":"c"}]}}`},
		{`{"metadata":{"finalizers":["a","b"]}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a",{}]}}`},
		{`{"spec":{"volumes":[{"name":"a","emptyDir":{}}]}}`,
			`{"spec":{"volumes":[{"name":"a","$retainKeys":["name","secret"],"secret":{"secretName":"b"}}]}}`},
		{`{"spec":{"containers":[{"name":"a"}]}}`, `{"spec":{"containers":[{"name":{}},{"$patch":"delete","name":"a"}]}}`},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, doc, patch []byte) {
		got, err := Strategic(doc, patch, &corev1.Pod{})
		if err != nil {
			return // or the library may panic
		}
		want, err := strategicpatch.StrategicMergePatch(doc, patch, &corev1.Pod{})
		require.NoError(t, err)
		require.JSONEq(t, string(want), string(got), "%s + %s", doc, patch)
	})
}

// repeatsName reports whether an object somewhere in the document has a name twice.
func repeatsName(doc []byte) bool {
	var value any
	if json.Unmarshal(doc, &value) != nil {
		return true
	}
	return names(doc) != countNames(value)
}

// names counts the names in a document's text.
func names(doc []byte) int {
	decoder, n := json.NewDecoder(strings.NewReader(string(doc))), 0
	var objects []bool // whether each open bracket is an object's
	expectName := false
	for {
		token, err := decoder.Token()
		if err != nil {
			return n
		}
		switch delim, _ := token.(json.Delim); {
		case delim == '{' || delim == '[':
			objects = append(objects, delim == '{')
			expectName = delim == '{'
			continue
		case delim == '}' || delim == ']':
			objects = objects[:len(objects)-1]
		case expectName:
			n++
			expectName = false
			continue
		}
		expectName = len(objects) > 0 && objects[len(objects)-1]
	}
}

func countNames(value any) int {
	n := 0
	switch v := value.(type) {
	case map[string]any:
		n = len(v)
		for _, below := range v {
			n += countNames(below)
		}
	case []any:
		for _, below := range v {
			n += countNames(below)
		}
	}
	return n
}
