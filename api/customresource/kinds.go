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

// kind is the kind that a definition defines.
type kind struct {
	definition *Definition
	versions   []*Version
	converter  Converter // nil leaves objects in their stored versions
}

// Version is one version of a kind.
type Version struct {
	// ID identifies the version and its schema: after a change of the definition its versions have other IDs.
	ID     uint64
	kind   *kind
	spec   *SpecVersion
	scale  *scale // nil if there is none
	schema func() (*structural.Schema, error)

	derived sync.Map // of a key to func() (any, error)
}

// Schema returns the version's compiled schema. The first call compiles it.
func (v *Version) Schema() (*structural.Schema, error) { return v.schema() }

// Definition returns the definition of the version's kind.
func (v *Version) Definition() *Definition { return v.kind.definition }

// Props returns the version's openAPIV3Schema as written in the definition, or nil if it has none. Each call decodes
// it again. The caller may change the result, and should not keep it, since it is many times as large as its JSON.
func (v *Version) Props() (*apiextensionsv1.JSONSchemaProps, error) {
	return v.kind.definition.schema(v.spec.Name)
}

// Derived returns the value that derive computes from the schema. The first call with the key computes it, and the
// version keeps it. The key's type should be private to the caller.
func (v *Version) Derived(key any, derive func(*structural.Schema) any) (any, error) {
	derived, found := v.derived.Load(key)
	if !found {
		derived, _ = v.derived.LoadOrStore(key, sync.OnceValues(func() (any, error) {
			schema, err := v.Schema()
			if err != nil {
				return nil, err
			}
			return derive(schema), nil
		}))
	}
	return derived.(func() (any, error))()
}

// Name returns the version's name, such as v1.
func (v *Version) Name() string { return v.spec.Name }

// APIVersion returns the group and the version's name, such as example.com/v1.
func (v *Version) APIVersion() string { return v.kind.definition.Spec.Group + "/" + v.spec.Name }

// hasStatus reports whether the version has a /status subresource.
func (v *Version) hasStatus() bool {
	return v.spec.Subresources != nil && v.spec.Subresources.Status != nil
}

// version returns the kind's version with that group and name, or nil.
func (k *kind) version(apiVersion string) *Version {
	for _, v := range k.versions {
		if v.APIVersion() == apiVersion {
			return v
		}
	}
	return nil
}

// Kinds returns the definition's registrations: one for each served version, and the registration of the storage
// version, which need not be among them. The latter lists all other versions in Unserved. The definition's names must
// have been accepted. state becomes the Definition of the registrations.
func (d *Definition) Kinds(state *api.Definition) (served []*api.Resource, stored *api.Resource) {
	return d.kinds(state, d.Converter)
}

// AsStored returns the registration of the storage version for code that must not depend on a webhook: objects stay in
// the version that they are stored in, unless only apiVersion differs.
func (d *Definition) AsStored() *api.Resource {
	_, stored := d.kinds(nil, nil)
	return stored
}

func (d *Definition) kinds(state *api.Definition, c Converter) (served []*api.Resource, stored *api.Resource) {
	k := &kind{definition: d, converter: c}
	var others, unserved []*api.Resource
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
			others = append(others, r)
		default:
			unserved = append(unserved, r)
		}
	}
	for _, r := range unserved {
		r.Conversion = &api.Conversion{Stored: stored}
	}
	stored.Unserved = unserved
	for _, r := range others {
		r.Conversion = &api.Conversion{Stored: stored}
		for _, path := range r.Fields {
			if !slices.Contains(stored.SelectablePaths(), path) {
				stored.ConvertedFields = append(stored.ConvertedFields, path)
			}
		}
	}
	return served, stored
}

// compile compiles the schema.
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

// resource returns the version's registration.
func (v *Version) resource() *api.Resource {
	d := v.kind.definition
	names := &d.Status.AcceptedNames
	headers, columns := tableOf(v.spec)
	r := &api.Resource{
		Names: api.Names{
			Group: d.Spec.Group, Version: v.spec.Name, Kind: names.Kind, ListKind: names.ListKind,
			Plural: names.Plural, Singular: names.Singular, ShortNames: names.ShortNames, Categories: names.Categories,
			Namespaced:  d.Spec.Scope == apiextensionsv1.NamespaceScoped,
			Deprecation: d.deprecation(v.spec),
		},
		Storage: api.Storage{
			New:              func() api.Object { return &Object{Fields: map[string]any{}, version: v} },
			NewList:          func() runtime.Object { return &metav1.List{} },
			Schema:           v.ID,
			Convert:          v.Convert,
			WebhookConverted: v.kind.remote() && v.kind.converter != nil,
		},
		Strategy: api.Strategy{
			Default:         v.setDefaults,
			Check:           v.check,
			Warnings:        warnings,
			Generation:      true,
			Conditional:     true,
			GenericMetadata: true,
		},
		Table: api.Table{
			Columns: headers,
			Cells:   func(obj api.Object) []any { return cells(columns, obj.(*Object)) },
		},
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

// setDefaults sets the defaults of the schema. If the schema cannot be compiled, check rejects the object.
func (v *Version) setDefaults(obj api.Object) {
	if schema, err := v.Schema(); err == nil {
		schema.Default(obj.(*Object).Fields)
	}
}

// copyStatus copies the status from src to dst.
func copyStatus(dst, src api.Object) {
	status, found := src.(*Object).Fields["status"]
	if found {
		dst.(*Object).Fields["status"] = runtime.DeepCopyJSONValue(status)
		return
	}
	delete(dst.(*Object).Fields, "status")
}
