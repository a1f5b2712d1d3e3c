package customresource

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/structural"
)

// kind is the kind of one definition.
type kind struct {
	definition *Definition
	versions   []*Version
	converter  Converter // nil leaves objects in their versions
}

// Version is one version of a kind.
type Version struct {
	// ID identifies the version and its schema: a definition that changes has versions with other IDs.
	ID     uint64
	kind   *kind
	spec   *SpecVersion
	scale  *scale // nil if there is none
	schema func() (*structural.Schema, error)

	derived sync.Map // of a key to func() (any, error)
}

// Schema is the version's compiled schema. It is compiled by the first call.
func (v *Version) Schema() (*structural.Schema, error) { return v.schema() }

// Definition is the definition of the version's kind.
func (v *Version) Definition() *Definition { return v.kind.definition }

// Props is the version's openAPIV3Schema as it is written in the definition, nil if it has none. Each call decodes it
// anew: the caller may change it, and should not keep it, since it is many times as large as its JSON.
func (v *Version) Props() (*apiextensionsv1.JSONSchemaProps, error) {
	return v.kind.definition.schema(v.spec.Name)
}

// Derived returns what from makes of the schema. It is made by the first call with the key, and kept as long as the
// version. The key's type should be the caller's own.
func (v *Version) Derived(key any, from func(*structural.Schema) any) (any, error) {
	derived, found := v.derived.Load(key)
	if !found {
		derived, _ = v.derived.LoadOrStore(key, sync.OnceValues(func() (any, error) {
			schema, err := v.Schema()
			if err != nil {
				return nil, err
			}
			return from(schema), nil
		}))
	}
	return derived.(func() (any, error))()
}

// Name is the version's name, such as v1.
func (v *Version) Name() string { return v.spec.Name }

// APIVersion is the version with its group.
func (v *Version) APIVersion() string { return v.kind.definition.Spec.Group + "/" + v.spec.Name }

// hasStatus reports whether the version has a /status subresource.
func (v *Version) hasStatus() bool {
	return v.spec.Subresources != nil && v.spec.Subresources.Status != nil
}

// version is the kind's version of that group and name, nil if there is none.
func (k *kind) version(apiVersion string) *Version {
	for _, v := range k.versions {
		if v.APIVersion() == apiVersion {
			return v
		}
	}
	return nil
}

// Kinds returns the definition's registrations, one for each version that is served, and that of the version that is
// stored, which need not be among them. The latter has all other versions as Unserved. The definition's names must have
// been accepted. state is what the registrations have as Definition.
func (d *Definition) Kinds(state *api.Definition) (served []*api.Resource, stored *api.Resource) {
	return d.kinds(state, d.Converter)
}

// AsStored is the registration of the stored version for what must not depend on another server: objects stay in the
// version in which they are stored, unless only apiVersion differs.
func (d *Definition) AsStored() *api.Resource {
	_, stored := d.kinds(nil, nil)
	return stored
}

func (d *Definition) kinds(state *api.Definition, c Converter) (served []*api.Resource, stored *api.Resource) {
	k := &kind{definition: d, converter: c}
	var views, unserved []*api.Resource
	for i := range d.Spec.Versions {
		spec := &d.Spec.Versions[i]
		v := &Version{ID: lastID.Add(1), kind: k, spec: spec}
		v.schema = sync.OnceValues(v.compile)
		if s := spec.Subresources; s != nil && s.Scale != nil {
			v.scale = newScale(s.Scale)
		}
		k.versions = append(k.versions, v)
		r := v.resource()
		r.Definition = state
		if spec.Served {
			served = append(served, r)
		}
		switch {
		case spec.Storage:
			stored = r
		case spec.Served:
			views = append(views, r)
		default:
			unserved = append(unserved, r)
		}
	}
	for _, r := range unserved {
		r.View = &api.View{Of: stored}
	}
	stored.Unserved = unserved
	for _, r := range views {
		r.View = &api.View{Of: stored}
		for _, path := range r.Fields {
			if !slices.Contains(stored.SelectablePaths(), path) {
				stored.ViewFields = append(stored.ViewFields, path)
			}
		}
	}
	return served, stored
}

// compile makes the schema.
func (v *Version) compile() (*structural.Schema, error) {
	d := v.kind.definition
	props, err := d.schema(v.spec.Name)
	if err == nil && props == nil {
		props = &apiextensionsv1.JSONSchemaProps{XPreserveUnknownFields: new(d.Spec.PreserveUnknownFields)}
	}
	var schema *structural.Schema
	if err == nil {
		schema, err = structural.New(props)
	}
	if err != nil {
		return nil, fmt.Errorf("the server could not properly serve the CR schema: %s in %s: %w", d.Name, v.spec.Name,
			err)
	}
	if !d.Spec.PreserveUnknownFields {
		schema.PruneDefaults()
	}
	return schema, nil
}

// resource is the version's registration.
func (v *Version) resource() *api.Resource {
	d := v.kind.definition
	names := &d.Status.AcceptedNames
	headers, columns := tableOf(v.spec)
	r := &api.Resource{
		Group: d.Spec.Group, Version: v.spec.Name, Kind: names.Kind, ListKind: names.ListKind,
		Plural: names.Plural, Singular: names.Singular, ShortNames: names.ShortNames, Categories: names.Categories,
		Namespaced:      d.Spec.Scope == apiextensionsv1.NamespaceScoped,
		New:             func() api.Object { return &Object{Fields: map[string]any{}, version: v} },
		NewList:         func() runtime.Object { return &metav1.List{} },
		Schema:          v.ID,
		Convert:         v.Convert,
		Remote:          v.kind.remote() && v.kind.converter != nil,
		Default:         v.setDefaults,
		Check:           v.check,
		Warnings:        warnings,
		Generation:      true,
		Conditional:     true,
		GenericMetadata: true,
		Deprecation:     d.deprecation(v.spec),
		Columns:         headers,
		Cells:           func(obj api.Object) []any { return cells(columns, obj.(*Object)) },
	}
	for _, f := range v.spec.SelectableFields {
		r.Fields = append(r.Fields, strings.TrimPrefix(f.JSONPath, "."))
	}
	if v.hasStatus() {
		r.Status = &api.Status{Copy: copyStatus, Reset: func(obj api.Object) { delete(obj.(*Object).Fields, "status") }}
	}
	if v.scale != nil {
		r.Scale = v.scale.resource()
	}
	return r
}

// setDefaults sets the defaults of the schema. An object whose schema can't be compiled is refused when it is checked.
func (v *Version) setDefaults(obj api.Object) {
	if schema, err := v.Schema(); err == nil {
		schema.Default(obj.(*Object).Fields)
	}
}

// copyStatus sets to's status to from's.
func copyStatus(to, from api.Object) {
	status, found := from.(*Object).Fields["status"]
	if found {
		to.(*Object).Fields["status"] = runtime.DeepCopyJSONValue(status)
		return
	}
	delete(to.(*Object).Fields, "status")
}
