package patch_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/coxswain-dev/coxswain/apiserver/patch"
)

type m = map[string]any

// variables returns n elements of a list that is merged by name.
func variables(n int, value string) (list []m) {
	for i := range n {
		list = append(list, m{"name": fmt.Sprintf("V%d", i), "value": value})
	}
	return list
}

// template returns a Deployment, or a patch of one, with a container.
func template(container m) m {
	container["name"] = "c"
	return m{"spec": m{"template": m{"spec": m{"containers": []m{container}}}}}
}

func TestStrategic_BoundsTheListsThatItMerges(t *testing.T) {
	t.Parallel()
	order := func(n int) (list []m) {
		for i := range n {
			list = append(list, m{"name": fmt.Sprintf("V%d", n-i)})
		}
		return list
	}
	finalizers := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprintf("example.com/%d", i))
		}
		return list
	}
	for name, c := range map[string]struct {
		doc, patch m
		tooLong    bool
	}{
		"few":          {template(m{"env": variables(500, "a")}), template(m{"env": variables(600, "b")}), false},
		"many":         {template(m{"env": variables(9000, "a")}), template(m{"env": variables(9000, "b")}), true},
		"one of many":  {template(m{"env": variables(9000, "a")}), template(m{"env": variables(1, "b")}), true},
		"many are new": {template(m{}), template(m{"env": variables(9000, "b")}), false},
		"their order":  {template(m{"env": variables(1, "a")}), template(m{"$setElementOrder/env": order(9000)}), true},
		"replaced":     {template(m{"args": finalizers(9000)}), template(m{"args": finalizers(9000)}), false},
		"scalars":      {m{"metadata": m{"finalizers": finalizers(9000)}}, m{"metadata": m{"finalizers": finalizers(1)}}, true},
		"removed": {m{"metadata": m{"finalizers": finalizers(9000)}},
			m{"metadata": m{"$deleteFromPrimitiveList/finalizers": finalizers(9000)}}, false},
		"of one that is new": {template(m{}), m{"spec": m{"template": m{"spec": m{"containers": []m{
			{"name": "n", "env": variables(3000, "a")}, {"name": "n", "env": variables(3000, "b")}}}}}}, true},
		"few of one that is new": {template(m{}), m{"spec": m{"template": m{"spec": m{"containers": []m{
			{"name": "n", "env": variables(300, "a")}, {"name": "n", "env": variables(300, "b")}}}}}}, false},
		"another member": {template(m{"env": variables(9000, "a")}), template(m{"image": "i"}), false},
		"a map":          {m{"metadata": m{"labels": m{"a": "b"}}}, m{"metadata": m{"labels": m{"a": nil}}}, false},
	} {
		doc, err := json.Marshal(c.doc)
		require.NoError(t, err)
		changes, err := json.Marshal(c.patch)
		require.NoError(t, err)
		patched, err := patch.Strategic(doc, changes, &appsv1.Deployment{})
		if c.tooLong {
			require.ErrorIs(t, err, patch.ErrTooLong, name)
			continue
		}
		require.NoError(t, err, name)
		want, err := strategicpatch.StrategicMergePatch(doc, changes, &appsv1.Deployment{})
		require.NoError(t, err, name)
		require.JSONEq(t, string(want), string(patched), name)
	}
}

func TestStrategic_AMergeKeyThatIsAnObjectIsAnError(t *testing.T) {
	t.Parallel()
	for _, changes := range []string{
		`{"spec":{"template":{"spec":{"containers":[{"name":{"a":1}}]}}}}`,
		`{"spec":{"template":{"spec":{"containers":[{"name":[]},{"name":[]}]}}}}`,
	} {
		_, err := patch.Strategic([]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c"}]}}}}`), []byte(changes),
			&appsv1.Deployment{})
		require.ErrorContains(t, err, "comparing uncomparable type")
	}
}

// BenchmarkStrategic patches as many elements as may be, in the order that takes longest.
func BenchmarkStrategic(b *testing.B) {
	doc, err := json.Marshal(template(m{"env": variables(1440, "a")}))
	require.NoError(b, err)
	list := variables(1440, "b")
	for i := range list[:len(list)/2] {
		list[i], list[len(list)-1-i] = list[len(list)-1-i], list[i]
	}
	changes, err := json.Marshal(template(m{"env": list}))
	require.NoError(b, err)
	for b.Loop() {
		_, err := patch.Strategic(doc, changes, &appsv1.Deployment{})
		require.NoError(b, err)
	}
}
