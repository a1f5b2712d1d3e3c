package fieldmanager

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The metadata of an embedded object has the same shape as an object's own metadata.
func TestMetaLayout_MatchesTheGoType(t *testing.T) {
	t.Parallel()
	shapes.Lock()
	s := shapeOfType(reflect.TypeFor[metav1.ObjectMeta](), "")
	shapes.Unlock()
	var names []string
	for _, f := range s.fields {
		names = append(names, f.name)
		l := metaLayout().object.field(f.name)
		require.NotNil(t, l, f.name)
		switch f.shape.form {
		case whole:
			require.True(t, l.object == nil && (l.list == nil || l.list.form == whole), f.name)
		case mapping:
			require.Equal(t, structure, l.object.form, f.name)
		default:
			require.Equal(t, f.shape.form, l.list.form, f.name)
			require.Len(t, l.list.keys, len(f.shape.keys), f.name)
			for i := range l.list.keys {
				require.Equal(t, f.shape.keys[i].name, l.list.keys[i].name)
			}
		}
	}
	require.Equal(t, names, slices.Sorted(maps.Keys(metaLayout().object.fields)))
}

func TestSameJSON(t *testing.T) {
	t.Parallel()
	for _, same := range [][2]any{{int64(1), 1.0}, {2.0, int64(2)}, {nil, nil}, {"a", "a"}, {[]any{int64(1)}, []any{1.0}},
		{map[string]any{"a": nil}, map[string]any{"a": nil}}, {absent{}, absent{}}} {
		require.True(t, sameJSON(same[0], same[1]), "%v", same)
	}
	for _, other := range [][2]any{{int64(1), 1.5}, {nil, map[string]any{}},
		{map[string]any{"a": nil}, map[string]any{}}, {map[string]any{"a": nil}, map[string]any{"b": nil}},
		{"1", int64(1)}, {[]any{}, nil}, {absent{}, nil}, {"a", []any{}}, {true, false}, {absent{}, map[string]any{}}} {
		require.False(t, sameJSON(other[0], other[1]), "%v", other)
		require.False(t, sameJSON(other[1], other[0]), "%v", other)
	}
}
