package fieldmanager

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	definitions "k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registrations "k8s.io/kube-aggregator/pkg/client/applyconfiguration"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// Appliers caches the library's field managers for each kind and subresource that has been applied. Parsing the
// schema of the built-in kinds takes 70 ms, so it happens only when the first configuration is applied. Each custom
// kind has its own schema, created on its first apply. The cache entries of a kind do not depend on other kinds,
// and are dropped when the kind changes or is removed. The zero value is ready for concurrent use.
type Appliers struct {
	mu         sync.Mutex
	generation int64
	kinds      map[*api.Resource]*applier // by the stored registration
}

// applier applies objects of one kind.
type applier struct {
	versions []*api.Resource // as in kindOf
	served   int             // the first served versions are served, the others are not
	types    func() (managedfields.TypeConverter, error)

	mu       sync.Mutex
	managers map[applied]*managedfields.FieldManager
}

type applied struct {
	res         *api.Resource
	subresource string
}

// Of returns the field manager of a kind or one of its subresources.
//
// If another server converts the objects of the kind, the field manager is valid for one request only, since it
// uses the request's context.
func (a *Appliers) Of(ctx context.Context, registry *api.Registry, res *api.Resource,
	subresource string) (*managedfields.FieldManager, error) {
	m, err := a.kind(registry, res).manager(ctx, res, subresource)
	if err != nil {
		return nil, fmt.Errorf("applying %s: %w", res.Plural, err)
	}
	return m, nil
}

// Types returns the schemas of all kinds of the registry.
func (a *Appliers) Types(registry *api.Registry) managedfields.TypeConverter {
	return allTypes{a, registry}
}

// allTypes looks up the schema of an object by its kind.
type allTypes struct {
	appliers *Appliers
	registry *api.Registry
}

// ObjectToTyped implements managedfields.TypeConverter.
func (t allTypes) ObjectToTyped(obj runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	gvk := obj.GetObjectKind().GroupVersionKind()
	res := t.registry.Snapshot().Kind(gvk)
	if res == nil {
		return nil, runtime.NewNotRegisteredErrForKind("Coxswain", gvk)
	}
	types, err := t.appliers.kind(t.registry, res).types()
	if err != nil {
		return nil, err
	}
	return types.ObjectToTyped(obj, options...)
}

// TypedToObject implements managedfields.TypeConverter. It needs no schema.
func (t allTypes) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	return managedfields.NewDeducedTypeConverter().TypedToObject(value)
}

// kind returns the applier of a kind.
func (a *Appliers) kind(registry *api.Registry, res *api.Resource) *applier {
	kinds := registry.Snapshot()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kinds == nil || a.generation < kinds.Generation {
		a.drop(kinds)
	}
	k := a.kinds[res.Stored()]
	if k == nil {
		k = newApplier(Versions(kinds, res), res)
		if a.generation == kinds.Generation && k.served > 0 {
			a.kinds[res.Stored()] = k // not cached if the registry no longer has the kind
		}
	}
	return k
}

// Forget drops the cached data of kinds that the registry no longer contains.
func (a *Appliers) Forget(registry *api.Registry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(registry.Snapshot())
}

// drop removes the kinds that have different versions in the registry or are missing there. a.mu must be held.
func (a *Appliers) drop(kinds *api.Snapshot) {
	versions := map[*api.Resource][]*api.Resource{}
	for _, res := range kinds.Resources {
		versions[res.Stored()] = append(versions[res.Stored()], res)
	}
	current := map[*api.Resource]*applier{}
	for stored, k := range a.kinds {
		if slices.Equal(k.versions[:k.served], versions[stored]) {
			current[stored] = k
		}
	}
	a.generation, a.kinds = kinds.Generation, current
}

func newApplier(served []*api.Resource, res *api.Resource) *applier {
	k := &applier{versions: allVersions(served, res), served: len(served),
		managers: map[applied]*managedfields.FieldManager{}}
	k.types = sync.OnceValues(func() (managedfields.TypeConverter, error) {
		if (kindOf{Resource: res}).isCustom() {
			return newCustomTypes(k.versions)
		}
		return builtinTypes(k.versions), nil
	})
	return k
}

// manager returns the field manager of a version or one of its subresources.
func (k *applier) manager(ctx context.Context, res *api.Resource, subresource string) (
	*managedfields.FieldManager, error) {
	if res.WebhookConverted {
		types, err := k.types()
		if err != nil {
			return nil, err
		}
		return newFieldManager(types, kindOf{Resource: res, versions: k.versions, ctx: ctx}, subresource)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	key := applied{res, subresource}
	if m, ok := k.managers[key]; ok {
		return m, nil
	}
	types, err := k.types()
	if err != nil {
		return nil, err
	}
	m, err := newFieldManager(types, kindOf{Resource: res, versions: k.versions}, subresource)
	if err != nil {
		return nil, err
	}
	k.managers[key] = m
	return m, nil
}

// builtinTypes returns the generated schemas of a built-in kind. They are in client-go, except for
// CustomResourceDefinition and APIService.
func builtinTypes(versions []*api.Resource) managedfields.TypeConverter {
	scheme := schemeOf(versions)
	switch versions[0].Group {
	case apiextensions.GroupName:
		return definitions.NewTypeConverter(scheme)
	case apiregistrationv1.GroupName:
		return registrations.NewTypeConverter(scheme)
	}
	return applyconfigurations.NewTypeConverter(scheme)
}

// schemeOf returns a scheme, which the library uses to look up the schema names of Go types.
func schemeOf(versions []*api.Resource) *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, res := range versions {
		scheme.AddKnownTypeWithName(res.GVK(), res.New())
	}
	return scheme
}

func newFieldManager(types managedfields.TypeConverter, kind kindOf,
	subresource string) (*managedfields.FieldManager, error) {
	create, filters := managedfields.NewDefaultFieldManager, unreachable(kind, subresource)
	switch {
	case subresource == "scale":
		// client-go has no schema for Scale. Its only field is a scalar, so it needs none.
		kind = kindOf{Resource: scaleKind, versions: []*api.Resource{scaleKind}}
		types = managedfields.NewDeducedTypeConverter()
	case kind.isCustom():
		create, filters = managedfields.NewDefaultCRDFieldManager, unreachableCustom(kind, subresource)
	}
	hub := encoding.Own(kind.Resource).GroupVersion()
	return create(types, kind, kind, kind, kind.GVK(), hub, subresource, filters)
}

// unreachable returns a filter for each version. It excludes the fields that a write to the subresource cannot
// change and therefore cannot own.
func unreachable(kind kindOf, subresource string) map[fieldpath.APIVersion]fieldpath.Filter {
	var filter fieldpath.Filter
	switch {
	case kind.isCustom():
		return nil
	case subresource == "" && kind.Status != nil:
		filter = fieldpath.NewExcludeSetFilter(fieldpath.NewSet(fieldpath.MakePathOrDie("status")))
	case subresource == "status":
		filter = fieldpath.NewExcludeSetFilter(besideStatus(kind.Stored().Status.Metadata))
	default:
		return nil
	}
	filters := map[fieldpath.APIVersion]fieldpath.Filter{}
	for _, res := range kind.versions {
		filters[fieldpath.APIVersion(res.GroupVersion().String())] = filter
	}
	return filters
}

// unreachableCustom does the same for a custom kind. Each of its versions may or may not have /status. As in
// kube-apiserver, a write to the object itself has only the filter of its own version.
func unreachableCustom(kind kindOf, subresource string) map[fieldpath.APIVersion]fieldpath.Filter {
	filters := map[fieldpath.APIVersion]fieldpath.Filter{}
	for _, res := range kind.versions {
		if subresource == "" && res != kind.Resource {
			continue
		}
		if fields := besideOf(res, subresource); fields != nil {
			set := fieldpath.NewSet()
			for _, name := range fields {
				set.Insert(fieldpath.MakePathOrDie(name))
			}
			filters[fieldpath.APIVersion(res.GroupVersion().String())] = fieldpath.NewExcludeSetFilter(set)
		}
	}
	return filters
}

// besideStatus returns the fields that a status write cannot change, except the given metadata, which it can.
func besideStatus(metadata api.Metadata) *fieldpath.Set {
	if metadata == 0 {
		return fieldpath.NewSet(fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("metadata"))
	}
	set := fieldpath.NewSet(fieldpath.MakePathOrDie("spec"))
	for _, name := range (api.AllMetadata &^ metadata).Fields() {
		set.Insert(fieldpath.MakePathOrDie("metadata", name))
	}
	return set
}
