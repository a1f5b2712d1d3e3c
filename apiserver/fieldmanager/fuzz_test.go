package fieldmanager

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// FuzzFieldSet checks that a parsed field set is written as the library would write it. It also compares the
// results of intersection and containment tests.
func FuzzFieldSet(f *testing.F) {
	const containers = `{"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{},"f:name":{}},"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{}}}}`
	for _, seed := range []string{
		`{}`, `{"f:metadata":{"f:labels":{".":{},"f:app":{}}}}`, containers,
		`{"f:metadata":{"f:finalizers":{".":{},"v:\"example.com/a\"":{},"v:null":{},"v:1":{}}}}`, `{"f:a":{"i:3":{}}}`,
		`{".":{}}`, `{"f:a":{"f:b":`, `{"f:a"}`, `null`,
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

		stored, err := canonical([]byte(other)) // the stored form is canonical
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
