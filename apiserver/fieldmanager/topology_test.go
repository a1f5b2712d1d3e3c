package fieldmanager

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/structured-merge-diff/v6/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestTopology_MatchesClientGo(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	for _, kind := range []string{"ConfigMap", "CustomResourceDefinition", "APIService"} { // one kind of each library
		res := kindtest.Of(t, kind)
		value, err := builtinTypes([]*api.Resource{res}).ObjectToTyped(Fresh(res))
		require.NoError(t, err)
		for _, def := range value.Schema().Types {
			if unstable.MatchString(def.Name) || strings.HasPrefix(def.Name, "__") || def.Map == nil {
				continue
			}
			if def.Map.ElementRelationship == schema.Atomic {
				want[def.Name] = "atomic"
			}
			for _, f := range def.Map.Fields {
				if marker := markerOf(value.Schema(), f.Type); marker != "" {
					want[def.Name+"."+f.Name] = marker
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		require.Equal(t, want[name], topology[name], "%q: %q,", name, want[name])
	}
	for _, name := range slices.Sorted(maps.Keys(topology)) {
		require.Contains(t, want, name)
	}
}

var unstable = regexp.MustCompile(`\.v\d+(alpha|beta)\d+\.`)

// markerOf returns the topology's entry for a field, or "" if the rule applies.
func markerOf(s *schema.Schema, field schema.TypeRef) string {
	list, entries := field.Inlined.List, field.Inlined.Map
	switch {
	case field.ElementRelationship != nil:
		return string(*field.ElementRelationship)
	case field.NamedType != nil && *field.NamedType == "__untyped_atomic_",
		entries != nil && entries.ElementRelationship == schema.Atomic:
		return "atomic"
	case list == nil || list.ElementRelationship != schema.Associative:
		return ""
	case len(list.Keys) == 0:
		return "set"
	}
	item, _ := s.Resolve(list.ElementType)
	var keys []string
	for _, key := range list.Keys {
		f, _ := item.Map.FindField(key)
		if text, ok := f.Default.(string); ok {
			key += "=" + text
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return strings.Join(keys, ",")
}
