package apiserver

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	kjson "sigs.k8s.io/json"

	"github.com/coxswain-dev/coxswain/api"
)

// TestJSON_WhatIsQuickIsTheSame reads and writes random objects of every kind, and documents in which a value of
// theirs has been exchanged, in both ways.
func TestJSON_WhatIsQuickIsTheSame(t *testing.T) {
	t.Parallel()
	for _, res := range api.Builtin() {
		if res.View != nil {
			continue // its fields are another version's too
		}
		t.Run(res.Group+"."+res.Kind, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(3) {
				random := newObjects(res, seed)
				obj := random.next(nil)
				doc, err := json.Marshal(obj)
				require.NoError(t, err)
				var ours bytes.Buffer
				require.NoError(t, marshal(&ours, obj))
				require.Equal(t, string(doc), ours.String())
				require.True(t, unmarshalKnown(doc, res.New()), "the quick way knows every field:\n%s", doc)
				sameJSON(t, res, doc)
				values := jsonValue.FindAllIndex(doc, -1)
				for range min(20, len(values)) {
					at, other := values[random.IntN(len(values))], inPlaces[random.IntN(len(inPlaces))]
					sameJSON(t, res, slices.Concat(doc[:at[0]], []byte(other), doc[at[1]:]))
				}
			}
		})
	}
}

// sameJSON holds what is read of a document against what Kubernetes' decoder makes of it.
func sameJSON(t *testing.T, res *api.Resource, doc []byte) {
	t.Helper()
	ours, theirs := res.New(), res.New()
	strict, err := unmarshalStrict(doc, ours)
	theirStrict, theirErr := kjson.UnmarshalStrict(doc, theirs)
	require.Equal(t, theirErr, err, "%s", doc)
	require.Equal(t, theirStrict, strict, "%s", doc)
	require.True(t, reflect.DeepEqual(theirs, ours), "%s", doc)

	ours, theirs = res.New(), res.New()
	err = unmarshalObject(doc, ours)
	require.Equal(t, kjson.UnmarshalCaseSensitivePreserveInts(doc, theirs), err, "%s", doc)
	require.True(t, reflect.DeepEqual(theirs, ours), "%s", doc)
}

var (
	jsonValue = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|\{\}|\[\]`)
	inPlaces  = []string{`null`, `""`, `"x"`, `"a\u00e9\ud83d\ude00"`, `"\ud800"`, "\"\xff\"", `"MQ=="`, `"M\nQ=="`, `"MQ"`, `"2020-01-01T00:00:00Z"`,
		`0`, `-0`, `1`, `1.0`, `1.5`, `1e3`, `99999999999999999999`, `true`, `"1"`, `"name"`, `"Name"`, `{}`, `[]`, `[null]`, `{"a":null}`, `{"a":"b","a":"c"}`, `{"unknown":1}`, ``, `,`}
)

// FuzzJSON is TestJSON_WhatIsQuickIsTheSame with whatever a fuzzer finds.
func FuzzJSON(f *testing.F) {
	kinds := api.Builtin()
	for i, res := range kinds {
		doc, err := json.Marshal(newObjects(res, 1).next(nil))
		require.NoError(f, err)
		f.Add(uint8(i), doc)
	}
	f.Fuzz(func(t *testing.T, kind uint8, doc []byte) {
		if checkDepth(doc) == nil {
			sameJSON(t, kinds[int(kind)%len(kinds)], doc)
		}
	})
}
