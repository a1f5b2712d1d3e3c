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

// Appliers are the library's field managers, one for each kind and subresource that has been applied. Parsing the
// schema of built-in kinds takes 70 ms. It happens once in a process, when the first configuration is applied. Each
// custom kind has a schema of its own, made when it is first applied. The schema and the field managers of a kind are
// dropped with it, and do not depend on other kinds. The zero value is ready for use, by several goroutines at once.
type Appliers struct {
	mu         sync.Mutex
	generation int64
	kinds      map[*api.Resource]*applier // by the stored registration
}

// applier applies the objects of one kind.
type applier struct {
	versions []*api.Resource // as in kindOf
	served   int             // how many of them are served
	types    func() (managedfields.TypeConverter, error)

	mu       sync.Mutex
	managers map[applied]*managedfields.FieldManager
}

type applied struct {
	res         *api.Resource
	subresource string
}

// Of returns the field manager of a kind or of one of its subresources.
//
// That of a kind whose objects another server converts is for one request, with whose context it asks that server.
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

// allTypes finds the schema of an object by its kind.
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

// kind returns what applies objects of a kind.
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
			a.kinds[res.Stored()] = k // rather than one that the registry no longer has
		}
	}
	return k
}

// Forget drops what was made of kinds that the registry no longer has.
func (a *Appliers) Forget(registry *api.Registry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop(registry.Snapshot())
}

// drop forgets the kinds of which the registry has other versions than before, or none. a.mu is held.
func (a *Appliers) drop(kinds *api.Snapshot) {
	versions := map[*api.Resource][]*api.Resource{}
	for _, res := range kinds.Resources {
		versions[res.Stored()] = append(versions[res.Stored()], res)
	}
	kept := map[*api.Resource]*applier{}
	for stored, k := range a.kinds {
		if slices.Equal(k.versions[:k.served], versions[stored]) {
			kept[stored] = k
		}
	}
	a.generation, a.kinds = kinds.Generation, kept
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

// manager returns the field manager of a version or of one of its subresources.
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

// builtinTypes returns the generated schemas of a built-in kind: client-go has all but those of definitions and of
// APIServices.
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

// schemeOf returns the scheme in which the library looks up the schema names of Go types.
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
		// client-go has no schema of a Scale. Its one field is a scalar, so it needs none.
		kind = kindOf{Resource: scaleKind, versions: []*api.Resource{scaleKind}}
		types = managedfields.NewDeducedTypeConverter()
	case kind.isCustom():
		create, filters = managedfields.NewDefaultCRDFieldManager, unreachableCustom(kind, subresource)
	}
	hub := encoding.Own(kind.Resource).GroupVersion()
	return create(types, kind, kind, kind, kind.GVK(), hub, subresource, filters)
}

// unreachable returns, for each version, a filter of the fields that a write to the subresource cannot change and
// therefore cannot own.
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

// unreachableCustom is unreachable for a custom kind, each version of which has a /status or not. As in
// kube-apiserver, a write to the object itself has the filter of its own version alone.
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

// besideStatus returns the fields that a status write cannot change, given the metadata that it can change.
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
