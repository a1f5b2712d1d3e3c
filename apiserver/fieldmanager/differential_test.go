package fieldmanager

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/objecttest"
)

// TestOwnership_MatchesTheLibrary writes random objects of every kind repeatedly, by several managers, and expects
// the managedFields that Kubernetes' library computes.
func TestOwnership_MatchesTheLibrary(t *testing.T) {
	t.Parallel()
	registry := api.NewRegistry(builtin.Kinds()...)
	var all Appliers
	for _, res := range registry.Snapshot().Resources {
		if res.Conversion != nil {
			continue // written through its views instead
		}
		t.Run(res.Group+"."+res.Plural, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5) {
				playOwnership(t, registry, &all, res, seed)
			}
		})
	}
}

// playOwnership simulates the life of one object.
func playOwnership(t *testing.T, registry *api.Registry, all *Appliers, res *api.Resource, seed uint64) {
	random := objecttest.New(res, seed)
	kinds := registry.Snapshot()
	var versions []*api.Resource
	for _, other := range kinds.Resources {
		if other.Stored() == res {
			versions = append(versions, other)
		}
	}
	old, entries := random.Next(nil), []metav1.ManagedFieldsEntry(nil)
	for write := range 6 {
		res := versions[random.IntN(len(versions))]
		w := Writer{Manager: random.Pick("alpha", "beta", ""), APIVersion: res.GroupVersion().String(),
			At: metav1.Now()}
		if res.Status != nil && random.IntN(3) == 0 && write > 0 {
			w.Subresource = "status"
		}
		library, err := all.Of(t.Context(), registry, res, w.Subresource)
		require.NoError(t, err)
		var ours []metav1.ManagedFieldsEntry
		var theirs runtime.Object
		obj := old
		if write == 0 {
			ours = Create(res, shownIn(t, res, obj), w)
			theirs, err = library.Update(Fresh(res.Stored()), clone(obj), w.Manager)
		} else {
			obj = random.Next(old)
			if w.Subresource == "status" { // as the server does
				merged := clone(old)
				res.Subresource("status").Write(merged, obj)
				obj = merged
			}
			old.SetUID("known")
			old.SetManagedFields(entries)
			ours, err = Update(t.Context(), kinds, res, obj, old, nil, w)
			require.NoError(t, err)
			theirs, err = library.Update(clone(old), without(obj), w.Manager)
		}
		if err != nil {
			return // a list with items that lack keys, which Kubernetes does not track
		}
		want := theirs.(api.Object).GetManagedFields()
		if !slices.Equal(books(want), books(ours)) {
			t.Fatalf("seed %d, write %d by %q %s\n%s", seed, write, w.Manager, w.Subresource,
				firstDifference(books(want), books(ours)))
		}
		old, entries = obj, applyToo(t, library, random, res, obj, ours, w)
		if len(entries) == 0 {
			return
		}
	}
}

func shownIn(t *testing.T, res *api.Resource, stored api.Object) api.Object {
	t.Helper()
	obj, err := encoding.ConvertTo(t.Context(), res, stored)
	require.NoError(t, err)
	return obj
}

// applyToo applies the object occasionally, so that entries for apply exist too.
func applyToo(t *testing.T, library *managedfields.FieldManager, random *objecttest.Objects, res *api.Resource,
	obj api.Object,
	entries []metav1.ManagedFieldsEntry, w Writer) []metav1.ManagedFieldsEntry {
	if random.IntN(3) > 0 || w.Subresource != "" {
		return entries
	}
	live := clone(obj)
	live.SetManagedFields(entries)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(shownIn(t, res, without(obj)))
	require.NoError(t, err)
	result, err := library.Apply(live, &unstructured.Unstructured{Object: content}, "gamma", true)
	if err != nil {
		return entries // an object with duplicates cannot be applied
	}
	entries = result.(api.Object).GetManagedFields()
	for i := range entries {
		entries[i].FieldsV1 = &metav1.FieldsV1{Raw: htmlSafe(entries[i].FieldsV1.GetRawBytes())}
	}
	return entries
}

// books returns managedFields as sorted lines without times.
func books(entries []metav1.ManagedFieldsEntry) []string {
	var lines []string
	for _, e := range entries {
		fields, err := json.Marshal(e.FieldsV1)
		if err != nil {
			fields = []byte(err.Error())
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s %s %s", e.Manager, e.Operation, e.APIVersion, e.Subresource,
			e.FieldsType, fields))
	}
	slices.Sort(lines)
	return lines
}

func clone(obj api.Object) api.Object { return obj.DeepCopyObject().(api.Object) }

func without(obj api.Object) api.Object {
	obj = clone(obj)
	obj.SetManagedFields(nil)
	return obj
}

// firstDifference returns the text around the first difference.
func firstDifference(want, have []string) string {
	a, b := strings.Join(want, "\n"), strings.Join(have, "\n")
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	excerpt := func(s string) string { return s[max(0, i-300):min(len(s), i+200)] }
	return fmt.Sprintf("the library has  …%s…\nthis server has …%s…", excerpt(a), excerpt(b))
}
