package apiserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/randfill"

	"github.com/coxswain-dev/coxswain/api"
)

// TestOwnership_IsTheLibrarys writes random objects of every kind again and again, by
// several managers, and has Kubernetes' library keep the same books.
func TestOwnership_IsTheLibrarys(t *testing.T) {
	t.Parallel()
	registry := api.NewRegistry(api.Builtin()...)
	var all appliers
	for _, res := range registry.Snapshot().Resources {
		if res.View != nil {
			continue // it is written now and then through each of its views
		}
		t.Run(res.Group+"."+res.Plural, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5) {
				playOwnership(t, registry, &all, res, seed)
			}
		})
	}
}

// playOwnership is one object's life.
func playOwnership(t *testing.T, registry *api.Registry, all *appliers, res *api.Resource, seed uint64) {
	random := newObjects(res, seed)
	kinds := registry.Snapshot()
	var versions []*api.Resource
	for _, other := range kinds.Resources {
		if other.Stored() == res {
			versions = append(versions, other)
		}
	}
	old, entries := random.next(nil), []metav1.ManagedFieldsEntry(nil)
	for write := range 6 {
		res := versions[random.IntN(len(versions))]
		w := writer{manager: random.pick("alpha", "beta", ""), apiVersion: res.GroupVersion().String(), at: metav1.Now()}
		if res.Status != nil && random.IntN(3) == 0 && write > 0 {
			w.subresource = "status"
		}
		library, err := all.of(registry, res, w.subresource)
		require.NoError(t, err)
		var ours []metav1.ManagedFieldsEntry
		var theirs runtime.Object
		obj := old
		if write == 0 {
			ours = ownNew(res, shownIn(t, res, obj), w)
			theirs, err = library.Update(fresh(res.Stored()), clone(obj), w.manager)
		} else {
			obj = random.next(old)
			if w.subresource == "status" { // as the server writes it
				merged := clone(old)
				res.Subresource("status").Write(merged, obj)
				obj = merged
			}
			old.SetUID("known")
			old.SetManagedFields(entries)
			ours, err = ownChanged(kinds, res, obj, old, nil, w)
			require.NoError(t, err)
			theirs, err = library.Update(clone(old), without(obj), w.manager)
		}
		if err != nil {
			return // a list with items that have no keys: Kubernetes keeps no books there
		}
		want := theirs.(api.Object).GetManagedFields()
		if !slices.Equal(books(want), books(ours)) {
			t.Fatalf("seed %d, write %d by %q %s\n%s", seed, write, w.manager, w.subresource, firstDifference(books(want), books(ours)))
		}
		old, entries = obj, applyToo(t, library, random, res, obj, ours, w)
		if len(entries) == 0 {
			return
		}
	}
}

func shownIn(t *testing.T, res *api.Resource, stored api.Object) api.Object {
	t.Helper()
	obj, err := showObject(res, stored)
	require.NoError(t, err)
	return obj
}

// applyToo has someone apply now and then, so that there are entries of that kind.
func applyToo(t *testing.T, library *managedfields.FieldManager, random *objects, res *api.Resource, obj api.Object, entries []metav1.ManagedFieldsEntry, w writer) []metav1.ManagedFieldsEntry {
	if random.IntN(3) > 0 || w.subresource != "" {
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

// books are managedFields in one order and without times.
func books(entries []metav1.ManagedFieldsEntry) []string {
	var lines []string
	for _, e := range entries {
		fields, err := json.Marshal(e.FieldsV1)
		if err != nil {
			fields = []byte(err.Error())
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s %s %s", e.Manager, e.Operation, e.APIVersion, e.Subresource, e.FieldsType, fields))
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

// objects makes random objects of a kind as they look after decoding.
type objects struct {
	*rand.Rand
	res  *api.Resource
	fill *randfill.Filler
}

func newObjects(res *api.Resource, seed uint64) *objects {
	o := &objects{Rand: rand.New(rand.NewPCG(seed, 7)), res: res}
	o.fill = randfill.NewWithSeed(int64(seed)).NilChance(0.4).NumElements(0, 3).MaxDepth(14).Funcs(
		func(s *string, c randfill.Continue) { *s = o.text() },
		func(d *metav1.Time, c randfill.Continue) { *d = metav1.Unix(o.Int64N(1e9), 0) },
		func(d *metav1.MicroTime, c randfill.Continue) {
			*d = metav1.NewMicroTime(time.UnixMicro(o.Int64N(1e15)))
		},
		func(q *resource.Quantity, c randfill.Continue) {
			*q = resource.MustParse(o.pick("1", "100m", "1Gi", "1024", "1e3", "0"))
		},
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.Parse(o.pick("1", "80", "50%", "http")) },
		func(v *runtime.RawExtension, c randfill.Continue) {
			v.Raw = []byte(o.pick(`{"a":1}`, `{"a":{"b":[1,2]},"c":null}`, `{"a":{"b":"x"},"d":{}}`, `{"kind":"x","a":"<&>"}`))
		},
		func(v *metav1.FieldsV1, c randfill.Continue) { v.Raw = []byte(`{"f:x":{}}`) },
		func(m *metav1.ManagedFieldsEntry, c randfill.Continue) {},
	)
	return o
}

func (o *objects) pick(from ...string) string { return from[o.IntN(len(from))] }

// text is short, so that it comes again, and not always harmless.
func (o *objects) text() string {
	return o.pick("a", "b", "c", "web", "", "x:", `q"uote`, `back\slash`, "<tag>&", "ümlaut", "\u2028", "tab\t", "a/b", "TCP", "z z", "!")
}

// next is a random object; with an old one, one that shares much with it.
func (o *objects) next(old api.Object) api.Object {
	obj := o.res.New()
	o.fill.Fill(obj)
	obj.SetManagedFields(nil)
	sent := documentOf(obj)
	if old != nil {
		sent, _ = o.mix(documentOf(without(old)), sent).(map[string]any)
	}
	doc, err := json.Marshal(sent)
	if err != nil {
		panic(err)
	}
	var made api.Object
	for range 2 { // what is sent as [] and left out when stored is not there
		made = fresh(o.res)
		if err := unmarshal(doc, made); err != nil {
			panic(err)
		}
		if doc, err = json.Marshal(made); err != nil {
			panic(err)
		}
	}
	made.GetObjectKind().SetGroupVersionKind(o.res.GVK())
	return made
}

func documentOf(obj api.Object) map[string]any {
	doc, err := json.Marshal(obj)
	if err != nil {
		panic(err)
	}
	var m map[string]any
	if err := unmarshal(doc, &m); err != nil {
		panic(err)
	}
	return m
}

// mix takes most from the old document and some from the new one.
func (o *objects) mix(old, now any) any {
	was, ok := old.(map[string]any)
	is, ok2 := now.(map[string]any)
	if ok && ok2 {
		mixed := map[string]any{}
		for _, k := range slices.Sorted(maps.Keys(was)) {
			v := was[k]
			if n, both := is[k]; both {
				mixed[k] = o.mix(v, n)
			} else if o.IntN(4) > 0 {
				mixed[k] = v
			}
		}
		for _, k := range slices.Sorted(maps.Keys(is)) {
			v := is[k]
			if _, both := was[k]; !both && o.IntN(4) == 0 {
				mixed[k] = v
			}
		}
		return mixed
	}
	a, ok := old.([]any)
	b, ok2 := now.([]any)
	if ok && ok2 {
		mixed := []any{}
		for i := range a {
			switch o.IntN(5) {
			case 0:
			case 1:
				if i < len(b) {
					mixed = append(mixed, o.mix(a[i], b[i]))
				}
			default:
				mixed = append(mixed, a[i])
			}
		}
		if len(b) > 0 && o.IntN(3) == 0 {
			mixed = append(mixed, b[0])
		}
		o.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		return mixed
	}
	if o.IntN(4) == 0 {
		return now
	}
	return old
}

// firstDifference shows where the books begin to differ.
func firstDifference(want, have []string) string {
	a, b := strings.Join(want, "\n"), strings.Join(have, "\n")
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	excerpt := func(s string) string { return s[max(0, i-300):min(len(s), i+200)] }
	return fmt.Sprintf("the library has  …%s…\nthis server has …%s…", excerpt(a), excerpt(b))
}
