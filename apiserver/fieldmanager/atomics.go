package fieldmanager

import (
	"fmt"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// RejectAtomics rejects a policy's apply configuration that sets an atomic list, map or struct, because applying it
// would remove the parts that the policy does not mention.
func RejectAtomics(v *typed.TypedValue) error {
	var found []string
	findAtomics(nil, v.Schema(), v.TypeRef(), v.AsValue(), &found)
	if len(found) > 0 {
		return fmt.Errorf("may not mutate atomic arrays, maps or structs: %s", strings.Join(found, ", "))
	}
	return nil
}

func findAtomics(path fieldpath.Path, types *schema.Schema, of schema.TypeRef, v value.Value, found *[]string) {
	atom, ok := types.Resolve(of)
	switch {
	case !ok:
		return
	case v.IsMap() && atom.Map != nil:
		if atom.Map.ElementRelationship == schema.Atomic {
			*found = append(*found, path.String())
		}
		v.AsMap().Iterate(func(key string, child value.Value) bool {
			if field, ok := atom.Map.FindField(key); ok {
				findAtomics(append(path.Copy(), fieldpath.PathElement{FieldName: &key}), types,
					field.Type, child, found)
			}
			return true
		})
	case v.IsList() && atom.List != nil:
		if atom.List.ElementRelationship == schema.Atomic {
			*found = append(*found, path.String())
		}
		list := v.AsList()
		for i := range list.Length() {
			findAtomics(append(path.Copy(), fieldpath.PathElement{Index: &i}), types, atom.List.ElementType,
				list.At(i), found)
		}
	}
}
