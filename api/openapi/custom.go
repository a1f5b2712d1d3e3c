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

// The metadata of objects and of lists, as kube-apiserver describes it for custom resources.
var (
	objectMetaDescription = metav1.PartialObjectMetadata{}.SwaggerDoc()["metadata"]
	listMetaDescription   = metav1.PartialObjectMetadataList{}.SwaggerDoc()["metadata"]
)

// custom returns the version that a CustomResourceDefinition defines, or nil for a built-in kind.
func custom(r *api.Resource) *customresource.Version {
	if r.Schema == 0 {
		return nil
	}
	if o, ok := r.New().(*customresource.Object); ok {
		return o.Version()
	}
	return nil
}

// addCustom defines a custom kind and its list, and returns their names.
func (d *definitions) addCustom(r *api.Resource, v *customresource.Version) (object, list string) {
	d.add(reflect.TypeFor[metav1.ObjectMeta]())
	object, list = d.free(kindName(r.GVK())), d.free(kindName(r.ListGVK()))
	form := d.customForm(v)
	markFields(form, r)
	d.schemas[object] = form

	items := spec.ArrayProperty(d.ref(object)).WithDescription("List of " + r.Plural + ". More info: " +
		"https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md")
	listSchema := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"},
		Description: r.ListGVK().Kind + " is a list of " + r.Kind, Required: []string{"items"}}}
	listSchema.SetProperty("items", *items)
	d.withMeta(listSchema, reflect.TypeFor[metav1.ListMeta](), listMetaDescription)
	markFields(listSchema, r)
	d.schemas[list] = listSchema
	return object, list
}

// free returns the name, or one derived from it if a built-in kind already has that name.
func (d *definitions) free(name string) string {
	for {
		if _, taken := d.schemas[name]; !taken {
			return name
		}
		name += "_v2" // as in Kubernetes
	}
}

// customForm returns the schema of a custom kind's objects. It describes any object if the definition has no schema,
// or one that cannot be described. In version 2, a kind with unknown fields at its root has no properties at all,
// since clients would reject all other fields.
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

// markFields records the fields that selectors may use.
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

// metaForms has the schemas of metadata that the form of every custom kind refers to. They are shared.
var metaForms = sync.OnceValue(func() map[string]*spec.Schema {
	d := &definitions{dialect: dialectV3, schemas: map[string]*spec.Schema{}}
	d.add(reflect.TypeFor[metav1.ObjectMeta]())
	return d.schemas
})

// customFormOf implements Form for a custom kind.
func customFormOf(r *api.Resource, v *customresource.Version) (name string, schemas map[string]*spec.Schema) {
	d := &definitions{dialect: dialectV3, schemas: maps.Clone(metaForms())}
	name = kindName(r.GVK())
	d.schemas[name] = d.customForm(v)
	markFields(d.schemas[name], r)
	d.markKind(name, r.GVK())
	return name, d.schemas
}

// allCustom reports whether all the kinds are custom.
func allCustom(resources []*api.Resource) bool {
	for _, r := range resources {
		if custom(r) == nil {
			return false
		}
	}
	return true
}
