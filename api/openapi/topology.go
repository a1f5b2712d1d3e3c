package openapi

import (
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitionapply "k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/applyconfigurations"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registrationapply "k8s.io/kube-aggregator/pkg/client/applyconfiguration"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

// mergeSchema describes how Kubernetes' own types merge under server-side apply. client-go has it as YAML for all
// kinds except CustomResourceDefinition and APIService. Parsing takes tens of milliseconds, so it is done on first
// use.
var mergeSchema = sync.OnceValues(func() (*schema.Schema, error) {
	// A schema is accessible only through a value of one of its types. Any kind will do.
	sample, definition := &corev1.ConfigMap{}, &apiextensionsv1.CustomResourceDefinition{}
	registration := &apiregistrationv1.APIService{}
	sample.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	definition.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	registration.SetGroupVersionKind(apiregistrationv1.SchemeGroupVersion.WithKind("APIService"))
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, sample)
	scheme.AddKnownTypes(apiextensionsv1.SchemeGroupVersion, definition)
	scheme.AddKnownTypes(apiregistrationv1.SchemeGroupVersion, registration)
	value, err := applyconfigurations.NewTypeConverter(scheme).ObjectToTyped(sample)
	if err != nil {
		return nil, fmt.Errorf("read client-go's merge schema: %w", err)
	}
	defined, err := definitionapply.NewTypeConverter(scheme).ObjectToTyped(definition)
	if err != nil {
		return nil, fmt.Errorf("read the merge schema of definitions: %w", err)
	}
	registered, err := registrationapply.NewTypeConverter(scheme).ObjectToTyped(registration)
	if err != nil {
		return nil, fmt.Errorf("read the merge schema of APIServices: %w", err)
	}
	return &schema.Schema{Types: slices.Concat(defined.Schema().Types, registered.Schema().Types,
		value.Schema().Types)}, nil
})

// topology is the merge schema of one definition. It is zero for a type that is never applied (a list, options, a
// custom type).
type topology struct{ atom schema.Atom }

func topologyOf(merge *schema.Schema, definition string) topology {
	if lists, ok := metaTopology[definition]; ok {
		return lists
	}
	if merge == nil {
		return topology{}
	}
	if def, ok := merge.FindNamedType(definition); ok {
		return topology{def.Atom}
	}
	return topology{}
}

// markType marks a definition of objects that are owned as a whole (atomic).
func (t topology) markType(s *spec.Schema) {
	if m := t.atom.Map; m != nil && len(m.Fields) > 0 && m.ElementRelationship == schema.Atomic {
		s.AddExtension("x-kubernetes-map-type", "atomic")
	}
}

// markField records how a property's list or map merges, and the default of a scalar.
func (t topology) markField(s *spec.Schema, field string) {
	if t.atom.Map == nil {
		return
	}
	f, ok := t.atom.Map.FindField(field)
	if !ok {
		return
	}
	switch f.Default.(type) {
	case string, bool, int, int64, float64:
		s.Default = f.Default
	}
	switch in := f.Type.Inlined; {
	case in.List != nil:
		markList(s, in.List)
	case in.Map != nil && in.Map.ElementRelationship == schema.Atomic,
		f.Type.ElementRelationship != nil && *f.Type.ElementRelationship == schema.Atomic:
		s.AddExtension("x-kubernetes-map-type", "atomic")
	}
}

func markList(s *spec.Schema, list *schema.List) {
	switch {
	case list.ElementRelationship != schema.Associative:
		s.AddExtension("x-kubernetes-list-type", "atomic")
	case len(list.Keys) == 0:
		s.AddExtension("x-kubernetes-list-type", "set")
	default:
		keys := make([]any, len(list.Keys))
		for i, key := range list.Keys {
			keys[i] = key
		}
		s.AddExtension("x-kubernetes-list-map-keys", keys)
		s.AddExtension("x-kubernetes-list-type", "map")
	}
}

// metaTopology has the part of client-go's schema that the documents of custom kinds need, so that they do not wait
// for its parsing.
var metaTopology = map[string]topology{
	"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": fieldsOf(map[string]schema.List{
		"finalizers":      {ElementRelationship: schema.Associative},
		"managedFields":   {ElementRelationship: schema.Atomic},
		"ownerReferences": {ElementRelationship: schema.Associative, Keys: []string{"uid"}},
	}),
	"io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference": {schema.Atom{Map: &schema.Map{
		ElementRelationship: schema.Atomic, Fields: []schema.StructField{{Name: "uid"}}}}},
	"io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions": fieldsOf(map[string]schema.List{
		"dryRun": {ElementRelationship: schema.Atomic}}),
	"io.k8s.apimachinery.pkg.apis.meta.v1.StatusDetails": fieldsOf(map[string]schema.List{
		"causes": {ElementRelationship: schema.Atomic}}),
	"io.k8s.api.autoscaling.v1.ScaleSpec": {schema.Atom{Map: &schema.Map{
		Fields: []schema.StructField{{Name: "replicas", Default: 0}}}}},
}

// fieldsOf returns the topology of a struct with lists.
func fieldsOf(lists map[string]schema.List) topology {
	fields := make([]schema.StructField, 0, len(lists))
	for name, list := range lists {
		fields = append(fields, schema.StructField{Name: name, Type: schema.TypeRef{Inlined: schema.Atom{List: &list}}})
	}
	return topology{schema.Atom{Map: &schema.Map{Fields: fields}}}
}
