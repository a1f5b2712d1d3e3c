package manifests_test

import (
	"encoding/json"
	"testing"
	"testing/fstest"

	"github.com/coxswain-dev/coxswain/internal/client/manifests"
)

// FuzzDecode checks that each document of a file is an error or an object that can be sent.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		"", "---\n---\n", "a: 1\n---\nb: 2\n", `{"a":1}{"b":2}`, "a: &a [*a]\n", "- a\n", "null\n", "a: .nan\n",
		"? [a]\n: b\n", "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: a}\n",
		"1: a\ntrue: b\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		source := manifests.Source{FS: fstest.MapFS{"a.yaml": {Data: []byte(text)}}}
		objects, err := source.Decode("a.yaml")
		if err != nil {
			return
		}
		for _, o := range objects {
			manifests.IsDefinition(o)
			if _, err := json.Marshal(o.Object); err != nil {
				t.Fatalf("%q is an object that is no JSON: %v", text, err)
			}
		}
	})
}
