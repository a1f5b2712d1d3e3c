package apiserver

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// FuzzFieldSet: a document that is read as a set of fields is written again as the library
// would write it, and says of another whether they meet and whether it has all of it.
func FuzzFieldSet(f *testing.F) {
	const containers = `{"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{},"f:name":{}},"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{}}}}`
	for _, seed := range []string{
		`{}`, `{"f:metadata":{"f:labels":{".":{},"f:app":{}}}}`, containers,
		`{"f:metadata":{"f:finalizers":{".":{},"v:\"example.com/a\"":{},"v:null":{},"v:1":{}}}}`, `{"f:a":{"i:3":{}}}`, `{".":{}}`, `{"f:a":{"f:b":`, `{"f:a"}`, `null`,
	} {
		f.Add(seed, containers)
	}
	f.Fuzz(func(t *testing.T, doc, other string) {
		set, err := parseFieldSet(doc)
		if err != nil {
			return
		}
		written := string(set.appendTo(nil))
		require.Len(t, written, set.size())
		again, err := parseFieldSet(written)
		require.NoError(t, err, "%q became %q", doc, written)
		require.Equal(t, written, string(again.appendTo(nil)))

		stored, err := canonical([]byte(other)) // as it is before anybody asks whether they meet
		if err != nil {
			return
		}
		var of, with fieldpath.Set
		if of.FromJSON(strings.NewReader(written)) != nil || with.FromJSON(bytes.NewReader(stored)) != nil {
			return
		}
		if !of.Intersection(&with).Empty() {
			require.True(t, set.mayMeet(string(stored)), "%q and %q", doc, stored)
		}
		if set.within(string(stored)) && !set.loses() {
			require.True(t, of.Difference(&with).Empty(), "%q is not within %q", doc, stored)
		}
		require.True(t, again.within(written), "%q", written)
	})
}

// FuzzMergePatch holds merge patches to the library that kube-apiserver uses.
func FuzzMergePatch(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"a":"b"}`, `{"a":"c"}`}, {`{"a":{"b":"c"}}`, `{"a":{"b":null,"d":[null]}}`}, {`{"a":[1]}`, `{"a":{"b":{}}}`}, {`{}`, `{"a":{"b":{"c":null}}}`},
		{`{"a\u0062":1}`, `{"ab":null}`}, {`{"a":1,"a":2}`, `{"a":3}`}, {`{"<":1}`, `{"\u003c":2}`},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, doc, patch []byte) {
		if !json.Valid(doc) || !json.Valid(patch) || firstByte(doc) != '{' || firstByte(patch) != '{' || repeatsName(doc) || repeatsName(patch) {
			return // refused before, or nothing that two readers need agree on
		}
		got, err := mergePatch(doc, patch)
		require.NoError(t, err)
		want, err := jsonpatch.MergePatch(doc, patch)
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

// FuzzJSONPatch: a patch that can be read either applies or is refused.
func FuzzJSONPatch(f *testing.F) {
	for _, seed := range []string{
		`[]`, `[null]`, `[{}]`, `[{"op":"test","path":""}]`, `[{"op":"test","path":"/a","value":null}]`, `[{"op":"move","from":"/a","path":"/a/b"}]`,
		`[{"op":"add","path":"/b/-","value":{}}]`, `[{"op":"copy","from":"/b","path":"/b/0"}]`, `[{"op":"replace","path":"/b/1e1","value":1}]`, `[{"op":"remove","path":"/~0~1~2"}]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		patch, err := jsonpatch.DecodePatch(body)
		if err != nil || len(patch) > 20 {
			return
		}
		if doc, err := applyJSONPatch(patch, []byte(`{"a":null,"b":[1,{"c":"d"}],"e":{"f":{}}}`)); err == nil {
			require.True(t, json.Valid(doc), "%s gave %s", body, doc)
		}
	})
}
