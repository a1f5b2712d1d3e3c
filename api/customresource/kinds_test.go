package customresource_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
)

func TestKinds_FollowTheDefinition(t *testing.T) {
	t.Parallel()
	all := kinds(t)
	v1, beta := all["v1"], all["v1beta1"]
	require.NoError(t, api.NewRegistry().Add(v1, beta))
	require.True(t, v1.Namespaced)
	require.Equal(t, []string{"w"}, v1.ShortNames)
	require.Equal(t, "example.com/widgets", v1.Collection())
	require.Equal(t, v1, beta.Stored())
	require.Equal(t, []string{"spec.color"}, v1.Fields)
	require.Equal(t, []string{"spec.color", "spec.size"}, v1.SelectablePaths(), "the store extracts the fields that other versions select by")
	require.Equal(t, []string{"spec.size", "spec.color"}, beta.SelectablePaths())
	require.Empty(t, v1.Deprecation)
	require.Equal(t, "example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget", beta.Deprecation)
	require.NotNil(t, v1.Status)
	require.Nil(t, beta.Status, "each version has subresources of its own")
	require.NotEqual(t, v1.Schema, beta.Schema)
}

func TestKinds_ConvertBetweenVersions(t *testing.T) {
	t.Parallel()
	all := kinds(t)
	v1, beta := all["v1"], all["v1beta1"]
	stored := sent(t, v1, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},
		"spec":{"size":1,"replicas":2},"status":{"ready":true}}`)
	viewed, err := beta.Convert(t.Context(), []api.Object{stored})
	require.NoError(t, err)
	require.Equal(t, map[string]any{"spec": map[string]any{"size": int64(1)}},
		viewed[0].(*customresource.Object).Fields)
	require.Equal(t, "example.com/v1beta1", viewed[0].(*customresource.Object).APIVersion)
	require.Contains(t, stored.Fields["spec"], "replicas", "the argument is left alone")
	back, err := v1.Convert(t.Context(), viewed)
	require.NoError(t, err)
	require.Equal(t, "example.com/v1", back[0].(*customresource.Object).APIVersion)
}

func TestCells(t *testing.T) {
	t.Parallel()
	v1 := kinds(t)["v1"]
	var names []string
	for _, c := range v1.Columns {
		names = append(names, c.Name)
	}
	require.Equal(t, []string{"Name", "Size", "Color", "First", "Age"}, names)
	require.Equal(t, "Custom resource definition column (in JSONPath format): .spec.size", v1.Columns[1].Description)
	o := sent(t, v1, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},
		"spec":{"size":7,"labels":{"all":[{"b":1},2]}}}`)
	require.Equal(t, []any{"a", int64(7), nil, `{"b":1}`, nil}, v1.Cells(o))
	o.CreationTimestamp = metav1.Now()
	require.Equal(t, "90m", v1.CellsAt(o.CreationTimestamp.Add(90*time.Minute), o)[4])
}

func TestCheck(t *testing.T) {
	t.Parallel()
	v1 := kinds(t)["v1"]
	doc := func(spec, status string) *customresource.Object {
		return sent(t, v1, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":`+spec+
			`,"status":`+status+`}`)
	}
	for name, c := range map[string]struct {
		obj, old    *customresource.Object
		subresource string
		errs        []string
	}{
		"good": {obj: doc(`{"size":1}`, `{}`)},
		"required": {obj: doc(`{}`, `{}`), errs: []string{"spec.size: Required value",
			"<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; " +
				"correct the existing errors to complete validation"}},
		"bound and rule": {obj: doc(`{"size":0}`, `{}`), errs: []string{
			`spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1`}},
		"rule": {obj: doc(`{"size":100}`, `{}`), errs: []string{`spec: Invalid value: too big`}},
		"transition": {obj: doc(`{"size":1}`, `{}`), old: doc(`{"size":2}`, `{}`),
			errs: []string{`spec: Invalid value: must not shrink`}},
		"unchanged": {obj: doc(`{"size":100}`, `{"ready":true}`), old: doc(`{"size":100}`, `{}`)},
		"scale": {obj: doc(`{"size":1,"replicas":-1}`, `{"replicas":-2}`), errs: []string{
			".spec.replicas: Invalid value: -1: should be a non-negative integer",
			".status.replicas: Invalid value: -2: should be a non-negative integer"}},
		"status": {obj: doc(`{"size":1}`, `{"ready":"yes"}`), old: doc(`{"size":1}`, `{}`), subresource: "status",
			errs: []string{`status.ready: Invalid value: "string": ready in body must be of type boolean: "string"`,
				"<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; " +
					"correct the existing errors to complete validation"}},
	} {
		var old api.Object
		if c.old != nil {
			old = c.old
		}
		errs, _, err := v1.Check(t.Context(), c.obj, old, c.subresource)
		require.NoError(t, err, name)
		var texts []string
		for _, e := range errs {
			texts = append(texts, e.Error())
		}
		require.Equal(t, c.errs, texts, name)
	}
}

func TestScale(t *testing.T) {
	t.Parallel()
	v1 := kinds(t)["v1"]
	o := sent(t, v1, `{"apiVersion":"example.com/v1","kind":"Widget","spec":{"size":1},
		"status":{"replicas":2,"selector":"a=b"}}`)
	found, err := v1.Scale.Check(o)
	require.NoError(t, err)
	require.False(t, found)
	v1.Scale.Set(o, 5)
	found, err = v1.Scale.Check(o)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, []string{"spec", "replicas"}, v1.Scale.ReplicasPath())
	spec, status, selector := v1.Scale.Get(o)
	require.Equal(t, []any{int32(5), int32(2), "a=b"}, []any{spec, status, selector})
}

func TestDefinition_SameKind(t *testing.T) {
	t.Parallel()
	read := func(doc string) *customresource.Definition {
		d, err := customresource.Read([]byte(doc))
		require.NoError(t, err)
		return d
	}
	was := read(widgets)
	require.True(t, was.SameKind(read(widgets)))
	require.True(t, was.SameKind(read(strings.Replace(widgets, `"storedVersions":["v1"]`, `"storedVersions":[]`, 1))))
	for old, new := range map[string]string{`"minimum":1`: `"minimum":2`, `"uid":"u1"`: `"uid":"u2"`,
		`"acceptedNames":{"plural":"widgets"`: `"acceptedNames":{"plural":"other"`} {
		require.False(t, was.SameKind(read(strings.Replace(widgets, old, new, 1))), new)
	}
}

// A server reads all definitions at its start. Most of their size is schemas.
func BenchmarkRead(b *testing.B) {
	properties := make([]string, 100)
	for i := range properties {
		properties[i] = fmt.Sprintf(`"field%d":{"type":"string","description":%q}`, i, strings.Repeat("word ", 35))
	}
	doc := fmt.Appendf(nil, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",`+
		`"metadata":{"name":"widgets.example.com","uid":"u"},"spec":{"group":"example.com","scope":"Namespaced",`+
		`"names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,`+
		`"schema":{"openAPIV3Schema":{"type":"object","properties":{%s}}}}]}}`, strings.Join(properties, ","))
	b.SetBytes(int64(len(doc)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := customresource.Read(doc); err != nil {
			b.Fatal(err)
		}
	}
}
