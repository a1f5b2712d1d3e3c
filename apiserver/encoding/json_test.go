package encoding

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
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver/objecttest"
)

// TestJSON_FastPathMatchesKubernetes decodes and encodes random objects of every kind, and variants of them with one
// replaced value, by the fast path and by Kubernetes' decoder.
func TestJSON_FastPathMatchesKubernetes(t *testing.T) {
	t.Parallel()
	for _, res := range builtin.Kinds() {
		if res.Conversion != nil {
			continue // its fields include another version's
		}
		t.Run(res.Group+"."+res.Kind, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(3) {
				random := objecttest.New(res, seed)
				obj := random.Next(nil)
				doc, err := json.Marshal(obj)
				require.NoError(t, err)
				var ours bytes.Buffer
				require.NoError(t, Marshal(&ours, obj))
				require.Equal(t, string(doc), ours.String())
				require.True(t, UnmarshalKnown(doc, res.New()), "the quick way knows every field:\n%s", doc)
				sameJSON(t, res, doc)
				values := jsonValue.FindAllIndex(doc, -1)
				for range min(20, len(values)) {
					place, other := values[random.IntN(len(values))], inPlaces[random.IntN(len(inPlaces))]
					sameJSON(t, res, slices.Concat(doc[:place[0]], []byte(other), doc[place[1]:]))
				}
			}
		})
	}
}

// sameJSON compares the decoded document with the result of Kubernetes' decoder.
func sameJSON(t *testing.T, res *api.Resource, doc []byte) {
	t.Helper()
	ours, theirs := res.New(), res.New()
	strict, err := UnmarshalStrict(doc, ours)
	theirStrict, theirErr := kjson.UnmarshalStrict(doc, theirs)
	require.Equal(t, theirErr, err, "%s", doc)
	require.Equal(t, theirStrict, strict, "%s", doc)
	require.True(t, reflect.DeepEqual(theirs, ours), "%s", doc)

	ours, theirs = res.New(), res.New()
	err = UnmarshalNew(doc, ours)
	require.Equal(t, kjson.UnmarshalCaseSensitivePreserveInts(doc, theirs), err, "%s", doc)
	require.True(t, reflect.DeepEqual(theirs, ours), "%s", doc)
}

var (
	jsonValue = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|\{\}|\[\]`)
	inPlaces  = []string{`null`, `""`, `"x"`, `"a\u00e9\ud83d\ude00"`, `"\ud800"`, "\"\xff\"", `"MQ=="`, `"M\nQ=="`,
		`"MQ"`, `"2020-01-01T00:00:00Z"`,
		`0`, `-0`, `1`, `1.0`, `1.5`, `1e3`, `99999999999999999999`, `true`, `"1"`, `"name"`, `"Name"`, `{}`, `[]`,
		`[null]`, `{"a":null}`, `{"a":"b","a":"c"}`, `{"unknown":1}`, ``, `,`}
)

// FuzzJSON makes the same comparison for fuzzed inputs.
func FuzzJSON(f *testing.F) {
	kinds := builtin.Kinds()
	for i, res := range kinds {
		doc, err := json.Marshal(objecttest.New(res, 1).Next(nil))
		require.NoError(f, err)
		f.Add(uint8(i), doc)
	}
	f.Fuzz(func(t *testing.T, kind uint8, doc []byte) {
		if CheckDepth(doc) == nil {
			sameJSON(t, kinds[int(kind)%len(kinds)], doc)
		}
	})
}
