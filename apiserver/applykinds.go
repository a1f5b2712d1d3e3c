package apiserver

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coxswain-dev/coxswain/api"
)

// appliers are the library's field managers, one for each kind and subresource that has
// been applied. The schema behind them takes 70 ms to parse, once in a process, and is
// parsed when the first configuration is applied.
type appliers struct {
	mu         sync.Mutex
	generation int64
	converter  managedfields.TypeConverter
	managers   map[applied]*managedfields.FieldManager
}

type applied struct {
	res         *api.Resource
	subresource string
}

// of returns the field manager of a kind's objects or of one of their subresources.
func (a *appliers) of(registry *api.Registry, res *api.Resource, subresource string) (*managedfields.FieldManager, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refresh(registry)
	key := applied{res, subresource}
	if m, ok := a.managers[key]; ok {
		return m, nil
	}
	m, err := newFieldManager(a.converter, kindOf{res, registry.Snapshot()}, subresource)
	if err != nil {
		return nil, fmt.Errorf("applying %s: %w", res.Plural, err)
	}
	a.managers[key] = m
	return m, nil
}

// types are the schemas of all the kinds there are.
func (a *appliers) types(registry *api.Registry) managedfields.TypeConverter {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refresh(registry)
	return a.converter
}

// refresh follows the registry. a.mu is held.
func (a *appliers) refresh(registry *api.Registry) {
	if kinds := registry.Snapshot(); a.converter == nil || a.generation != kinds.Generation {
		a.generation = kinds.Generation
		a.converter = applyconfigurations.NewTypeConverter(schemeOf(kinds))
		a.managers = map[applied]*managedfields.FieldManager{}
	}
}

// schemeOf is what the library asks for the schemas' names of Go types.
func schemeOf(kinds *api.Snapshot) *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, res := range kinds.Resources {
		scheme.AddKnownTypeWithName(res.GVK(), res.New())
	}
	return scheme
}

func newFieldManager(converter managedfields.TypeConverter, kind kindOf, subresource string) (*managedfields.FieldManager, error) {
	unreachable := unreachable(kind, subresource)
	if subresource == "scale" {
		// client-go has no schema of a Scale. With a scalar as its one field it needs none.
		kind = kindOf{scaleKind, api.NewRegistry(scaleKind).Snapshot()}
		converter = managedfields.NewDeducedTypeConverter()
	}
	return managedfields.NewDefaultFieldManager(converter, kind, kind, kind, kind.GVK(), kind.Stored().GroupVersion(), subresource, unreachable)
}

// scaleKind is what applying a Scale needs to know of its kind.
var scaleKind = &api.Resource{
	Group: "autoscaling", Version: "v1", Kind: "Scale", Plural: "scales", Namespaced: true,
	New:     func() api.Object { return newScale() },
	NewList: func() runtime.Object { return &metav1.List{} },
}

// unreachable filters, in each version, what a write to the subresource cannot change, and
// hence not own.
func unreachable(kind kindOf, subresource string) map[fieldpath.APIVersion]fieldpath.Filter {
	status := fieldpath.MakePathOrDie("status")
	var filter fieldpath.Filter
	switch {
	case subresource == "" && kind.Status != nil:
		filter = fieldpath.NewExcludeSetFilter(fieldpath.NewSet(status))
	case subresource == "status":
		filter = fieldpath.NewExcludeSetFilter(besideStatus(kind.Stored().Status.Metadata))
	default:
		return nil
	}
	filters := map[fieldpath.APIVersion]fieldpath.Filter{}
	for _, res := range kind.versions() {
		filters[fieldpath.APIVersion(res.GroupVersion().String())] = filter
	}
	return filters
}

// besideStatus is what a write to the status cannot change, where it can change these parts of the metadata.
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

// kindOf is a kind as the library wants to see it: it makes, defaults and converts objects
// of all the versions that show what one registration stores.
type kindOf struct {
	*api.Resource
	kinds *api.Snapshot
}

// versions are the registrations that show the kind.
func (k kindOf) versions() []*api.Resource {
	var all []*api.Resource
	for _, res := range k.kinds.Resources {
		if res.Stored() == k.Stored() {
			all = append(all, res)
		}
	}
	return all
}

// fresh is an object of the kind of which nothing is known.
func fresh(res *api.Resource) api.Object {
	obj := res.New()
	obj.GetObjectKind().SetGroupVersionKind(res.GVK())
	return obj
}

// version is the registration of a kind, if it is one of those meant.
func (k kindOf) version(gvk schema.GroupVersionKind) (*api.Resource, error) {
	if gvk.Kind == k.Kind {
		if res := k.kinds.Version(k.Resource, gvk.GroupVersion().String()); res != nil {
			return res, nil
		}
	}
	return nil, runtime.NewNotRegisteredErrForKind("Coxswain", gvk)
}

func (k kindOf) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	res, err := k.version(gvk)
	if err != nil {
		return nil, err
	}
	return fresh(res), nil
}

func (k kindOf) Default(obj runtime.Object) {
	res, err := k.version(obj.GetObjectKind().GroupVersionKind())
	if err == nil && res.Default != nil {
		res.Default(obj.(api.Object))
	}
}

// ConvertToVersion leads from any version to any other by way of the one that is stored.
func (k kindOf) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	from, err := k.version(in.GetObjectKind().GroupVersionKind())
	if err != nil {
		return nil, err
	}
	obj := fresh(from)
	if document, ok := in.(runtime.Unstructured); !ok {
		obj = in.(api.Object)
	} else if err := k.Convert(document.UnstructuredContent(), obj, nil); err != nil {
		return nil, err
	}
	var all []schema.GroupVersionKind
	for _, res := range k.versions() {
		all = append(all, res.GVK())
	}
	gvk, _ := target.KindForGroupVersionKinds(all)
	to, err := k.version(gvk)
	if err != nil {
		return nil, err
	}
	if from == to {
		return obj, nil
	}
	stored, err := read(from, obj)
	if err != nil {
		return nil, err
	}
	return showObject(to, stored)
}

func (k kindOf) Convert(in, out, _ any) error {
	doc, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encoding a %s: %w", k.Kind, err)
	}
	if err := checkQuantities(doc, reflect.TypeOf(out)); err != nil {
		return fmt.Errorf("decoding a %s: %w", k.Kind, err)
	}
	if err := unmarshal(doc, out); err != nil {
		return fmt.Errorf("decoding a %s: %w", k.Kind, err)
	}
	return nil
}

func (k kindOf) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}
