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
	"github.com/coxswain-dev/coxswain/api/builtin"
)

func TestTopology_IsTheLibrarys(t *testing.T) {
	t.Parallel()
	want := map[string]string{}
	for _, res := range builtin.Kinds() {
		if res.Kind != "ConfigMap" && res.Kind != "CustomResourceDefinition" {
			continue // client-go has one schema for them all
		}
		sample := res.New()
		sample.GetObjectKind().SetGroupVersionKind(res.GVK())
		value, err := builtinTypes([]*api.Resource{res}).ObjectToTyped(sample)
		require.NoError(t, err)
		addMarkers(want, value.Schema())
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		require.Equal(t, want[name], topology[name], "%q: %q,", name, want[name])
	}
	for _, name := range slices.Sorted(maps.Keys(topology)) {
		require.Contains(t, want, name)
	}
}

// addMarkers adds the entries of a schema's types.
func addMarkers(to map[string]string, s *schema.Schema) {
	for _, def := range s.Types {
		if unstable.MatchString(def.Name) || strings.HasPrefix(def.Name, "__") || def.Map == nil {
			continue
		}
		if def.Map.ElementRelationship == schema.Atomic {
			to[def.Name] = "atomic"
		}
		for _, f := range def.Map.Fields {
			if marker := markerOf(s, f.Type); marker != "" {
				to[def.Name+"."+f.Name] = marker
			}
		}
	}
}

var unstable = regexp.MustCompile(`\.v\d+(alpha|beta)\d+\.`)

// markerOf returns the topology's entry for a field; "" if the rule holds.
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
