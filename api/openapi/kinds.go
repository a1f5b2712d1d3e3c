package openapi

import (
	"cmp"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/coxswain-dev/coxswain/api"
)

const extensionKind = "x-kubernetes-group-version-kind"

// Form returns the schema of a resource's kind, by its name in schemas, and all the schemas that it refers to, but not
// that of its list. They are the schemas of the version 3 documents. For a built-in kind they do not say how lists and
// maps merge, since that is costly to find out. The schemas of a custom kind do, and are all that
// managedfields.NewTypeConverter needs for server-side apply.
//
// Each call builds the schema of the kind again. For a custom kind it decodes the definition, which takes some 50 ms
// per megabyte. The schemas of metadata in the result are shared and must not be changed.
func Form(r *api.Resource) (name string, schemas map[string]*spec.Schema) {
	if v := custom(r); v != nil {
		return customFormOf(r, v)
	}
	d := &definitions{dialect: dialectV3, schemas: map[string]*spec.Schema{}}
	name = d.add(reflect.TypeOf(r.New()))
	d.markKind(name, r.GVK())
	return name, d.schemas
}

// addResource defines a resource's kind and its list, if there is one, and returns their names.
func (d *definitions) addResource(r *api.Resource) (object, list string) {
	if v := custom(r); v != nil {
		object, list = d.addCustom(r, v)
	} else {
		object = d.add(reflect.TypeOf(r.New()))
		if !r.CreateOnly {
			list = d.add(reflect.TypeOf(r.NewList()))
		}
	}
	d.markKind(object, r.GVK())
	if list != "" {
		d.markKind(list, r.ListGVK())
	}
	return object, list
}

// markKind records that a definition is the schema of a kind. One Go type may serve several.
func (d *definitions) markKind(definition string, kind schema.GroupVersionKind) {
	s := d.schemas[definition]
	kinds, _ := s.Extensions[extensionKind].([]any)
	entry := kindExtension(kind)
	if !slices.ContainsFunc(kinds, func(other any) bool { return compareKinds(other, entry) == 0 }) {
		kinds = append(kinds, entry)
		slices.SortFunc(kinds, compareKinds)
	}
	s.AddExtension(extensionKind, kinds)
}

func kindExtension(kind schema.GroupVersionKind) any {
	return map[string]any{"group": kind.Group, "version": kind.Version, "kind": kind.Kind}
}

func compareKinds(a, b any) int {
	x, y := a.(map[string]any), b.(map[string]any)
	return cmp.Or(
		cmp.Compare(x["group"].(string), y["group"].(string)),
		cmp.Compare(x["version"].(string), y["version"].(string)),
		cmp.Compare(x["kind"].(string), y["kind"].(string)),
	)
}
