package openapi

import (
	"maps"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
)

const extensionFields = "x-kubernetes-selectable-fields"

// The metadata of objects and of lists, as kube-apiserver describes it in custom resources.
var (
	objectMetaDescription = metav1.PartialObjectMetadata{}.SwaggerDoc()["metadata"]
	listMetaDescription   = metav1.PartialObjectMetadataList{}.SwaggerDoc()["metadata"]
)

// custom returns the version of a kind that a definition defines, nil for a built-in kind.
func custom(r *api.Resource) *customresource.Version {
	if r.Schema == 0 {
		return nil
	}
	if o, ok := r.New().(*customresource.Object); ok {
		return o.Version()
	}
	return nil
}

// addCustom defines a custom kind and its list.
func (d *definitions) addCustom(r *api.Resource, v *customresource.Version) (object, list string) {
	d.add(reflect.TypeFor[metav1.ObjectMeta]())
	object, list = d.free(kindName(r.GVK())), d.free(kindName(r.ListGVK()))
	form := d.customForm(v)
	markFields(form, r)
	d.schemas[object] = form

	items := spec.ArrayProperty(d.ref(object)).WithDescription("List of " + r.Plural + ". More info: " +
		"https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md")
	of := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"},
		Description: r.ListGVK().Kind + " is a list of " + r.Kind, Required: []string{"items"}}}
	of.SetProperty("items", *items)
	d.withMeta(of, reflect.TypeFor[metav1.ListMeta](), listMetaDescription)
	markFields(of, r)
	d.schemas[list] = of
	return object, list
}

// free is the name, or one made of it if a built-in kind has that name already.
func (d *definitions) free(name string) string {
	for {
		if _, taken := d.schemas[name]; !taken {
			return name
		}
		name += "_v2" // as in Kubernetes
	}
}

// customForm is the schema of a custom kind's objects. It is that of any object if the definition has none, or one that
// can't be described. In version 2, a kind with unknown fields at its root has no properties at all: clients would
// refuse all others.
func (d *definitions) customForm(v *customresource.Version) *spec.Schema {
	form := &spec.Schema{}
	props, err := v.Props()
	unknown := err == nil && props != nil && (v.Definition().Spec.PreserveUnknownFields ||
		props.XPreserveUnknownFields != nil && *props.XPreserveUnknownFields)
	if err != nil || props == nil || !d.v3 && unknown || d.convert(form, props) != nil {
		return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
	}
	d.withMeta(form, reflect.TypeFor[metav1.ObjectMeta](), objectMetaDescription)
	return form
}

// withMeta adds the fields of TypeMeta and of the given metadata type to a schema.
func (d *definitions) withMeta(s *spec.Schema, meta reflect.Type, description string) {
	docs := swaggerDoc(reflect.TypeFor[metav1.TypeMeta]())
	for _, name := range []string{"apiVersion", "kind"} {
		p := primitive("string", "")
		p.Description = docs[name]
		s.SetProperty(name, p)
	}
	s.SetProperty("metadata", *d.wrapRef(d.ref(d.add(meta)).WithDescription(description)))
}

// markFields records the fields that selectors may name.
func markFields(s *spec.Schema, r *api.Resource) {
	if len(r.Fields) == 0 {
		return
	}
	fields := make([]any, len(r.Fields))
	for i, path := range r.Fields {
		fields[i] = map[string]any{"fieldPath": path}
	}
	s.AddExtension(extensionFields, fields)
}

// metaForms are the schemas of metadata, to which the form of every custom kind refers. They are shared.
var metaForms = sync.OnceValue(func() map[string]*spec.Schema {
	d := &definitions{dialect: dialectV3, schemas: map[string]*spec.Schema{}}
	d.add(reflect.TypeFor[metav1.ObjectMeta]())
	return d.schemas
})

// customFormOf is Form of a custom kind.
func customFormOf(r *api.Resource, v *customresource.Version) (name string, schemas map[string]*spec.Schema) {
	d := &definitions{dialect: dialectV3, schemas: maps.Clone(metaForms())}
	name = kindName(r.GVK())
	d.schemas[name] = d.customForm(v)
	markFields(d.schemas[name], r)
	d.markKind(name, r.GVK())
	return name, d.schemas
}

// allCustom reports whether definitions define all of the kinds.
func allCustom(resources []*api.Resource) bool {
	for _, r := range resources {
		if custom(r) == nil {
			return false
		}
	}
	return true
}
