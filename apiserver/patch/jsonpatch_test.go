package patch

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// FuzzJSONPatch applies patches. One that can be read is either applied or rejected, without a panic.
func FuzzJSONPatch(f *testing.F) {
	for _, seed := range []string{
		`[]`, `[null]`, `[{}]`, `[{"op":"test","path":""}]`, `[{"op":"test","path":"/a","value":null}]`,
		`[{"op":"move","from":"/a","path":"/a/b"}]`,
		`[{"op":"add","path":"/b/-","value":{}}]`, `[{"op":"copy","from":"/b","path":"/b/0"}]`,
		`[{"op":"replace","path":"/b/1e1","value":1}]`, `[{"op":"remove","path":"/~0~1~2"}]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		operations, err := jsonpatch.DecodePatch(body)
		if err != nil || len(operations) > 20 {
			return
		}
		if doc, err := applyJSON(operations, []byte(`{"a":null,"b":[1,{"c":"d"}],"e":{"f":{}}}`)); err == nil {
			require.True(t, json.Valid(doc), "%s gave %s", body, doc)
		}
	})
}
