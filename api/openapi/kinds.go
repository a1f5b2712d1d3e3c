package openapi

import (
	"cmp"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
	merge "sigs.k8s.io/structured-merge-diff/v6/schema"

	"github.com/coxswain-dev/coxswain/api"
)

const extensionKind = "x-kubernetes-group-version-kind"

// Form is the schema of a resource's kind, by its name in schemas, and of all that it refers to. The
// schemas are those of the documents of version 3, without how lists and maps merge, which is costly to
// find out.
func Form(r *api.Resource) (name string, schemas map[string]*spec.Schema) {
	d := &definitions{dialect: dialectV3, merge: &merge.Schema{}, schemas: map[string]*spec.Schema{}}
	name, _ = d.addResource(r)
	return name, d.schemas
}

// addResource defines a resource's kind and its list, if there is one, and returns their names.
func (d *definitions) addResource(r *api.Resource) (object, list string) {
	switch {
	case r.Review:
		object = d.add(reflect.TypeOf(r.New()))
		d.markKind(object, r.GVK())
		return object, ""
	case dynamic(r):
		object, list = d.addDynamic(r)
	default:
		object, list = d.add(reflect.TypeOf(r.New())), d.add(reflect.TypeOf(r.NewList()))
	}
	d.markKind(object, r.GVK())
	d.markKind(list, r.ListGVK())
	return object, list
}

// dynamic reports whether a resource's objects have no Go type with their fields.
func dynamic(r *api.Resource) bool {
	_, ok := r.New().(runtime.Unstructured)
	return ok || r.Schema != 0
}

// addDynamic defines a kind without a Go type. Only the fields that every object has are known; a
// registration with a schema of its own replaces the form here.
func (d *definitions) addDynamic(r *api.Resource) (object, list string) {
	object = kindName(r.GVK())
	list = object + "List"
	form := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
	form.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	d.schemas[object] = d.withMeta(form, reflect.TypeFor[metav1.ObjectMeta]())

	items := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"},
		Required: []string{"items"}}}
	items.Description = list + " is a list of " + r.Kind
	items.SetProperty("items", *spec.ArrayProperty(d.ref(object)))
	d.schemas[list] = d.withMeta(items, reflect.TypeFor[metav1.ListMeta]())
	return object, list
}

// withMeta adds the fields of TypeMeta and of the given metadata type to a schema.
func (d *definitions) withMeta(s *spec.Schema, meta reflect.Type) *spec.Schema {
	docs := swaggerDoc(reflect.TypeFor[metav1.TypeMeta]())
	for _, name := range []string{"apiVersion", "kind"} {
		p := primitive("string", "")
		p.Description = docs[name]
		s.SetProperty(name, p)
	}
	s.SetProperty("metadata", *d.ref(d.add(meta)))
	return s
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
