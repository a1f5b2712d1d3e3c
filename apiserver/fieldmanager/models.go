package fieldmanager

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/api/structural"
)

// metaModel is the name of the model of metadata.
const metaModel = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

// customTypes converts the objects of a custom kind to and from the typed values of Kubernetes' library.
type customTypes struct{ managedfields.TypeConverter }

// newCustomTypes creates the models of all versions of a kind.
func newCustomTypes(versions []*api.Resource) (managedfields.TypeConverter, error) {
	models := map[string]*spec.Schema{metaModel: modelOf(objectMeta())}
	for _, res := range versions {
		schema, err := res.New().(*customresource.Object).Version().Schema()
		if err != nil {
			return nil, err
		}
		models[res.GVK().String()] = kindModel(res, schema)
	}
	types, err := managedfields.NewTypeConverter(models, false)
	if err != nil {
		return nil, err
	}
	return customTypes{types}, nil
}

// ObjectToTyped implements managedfields.TypeConverter.
func (c customTypes) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if custom, ok := obj.(*customresource.Object); ok {
		obj = &unstructured.Unstructured{Object: custom.Content()}
	}
	return c.TypeConverter.ObjectToTyped(obj, options...)
}

// kindModel returns the OpenAPI model of a version's objects, reduced to the parts that affect server-side apply.
func kindModel(res *api.Resource, schema *structural.Schema) *spec.Schema {
	model := &spec.Schema{}
	model.Typed("object", "")
	if schema.Type() == "object" { // without a schema, objects are free
		model = modelOf(schema)
		addObject(model)
	}
	model.AddExtension("x-kubernetes-group-version-kind", []any{
		map[string]any{"group": res.Group, "version": res.Version, "kind": res.Kind}})
	return model
}

// addObject adds the fields that all objects have.
func addObject(model *spec.Schema) {
	model.SetProperty("apiVersion", *spec.StringProperty())
	model.SetProperty("kind", *spec.StringProperty())
	model.SetProperty("metadata", *spec.RefSchema("#/components/schemas/" + metaModel))
}

// modelOf returns the OpenAPI model of a schema.
func modelOf(s *structural.Schema) *spec.Schema {
	model := &spec.Schema{}
	if t := s.Type(); t != "" {
		model.Typed(t, s.Format())
	}
	model.Nullable, model.Default = s.Nullable(), s.DefaultValue()
	for name, field := range s.Properties() {
		model.SetProperty(name, *modelOf(field))
	}
	if schema, allowed, stated := s.AdditionalProperties(); stated {
		model.AdditionalProperties = &spec.SchemaOrBool{Allows: allowed}
		if schema != nil {
			model.AdditionalProperties.Schema = modelOf(schema)
		}
	}
	if s.Items() != nil {
		model.Items = &spec.SchemaOrArray{Schema: modelOf(s.Items())}
	}
	if s.PreservesUnknownFields() {
		model.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	}
	if s.AtomicMap() {
		model.AddExtension("x-kubernetes-map-type", "atomic")
	}
	if listType := s.ListType(); listType != "atomic" {
		model.AddExtension("x-kubernetes-list-type", listType)
		model.AddExtension("x-kubernetes-list-map-keys", s.ListMapKeys())
	}
	if s.EmbedsResource() {
		addObject(model)
	}
	return model
}
