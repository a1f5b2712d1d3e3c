package fieldmanager

import (
	"encoding/json"
	"fmt"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// Appliers are the library's field managers, one for each kind and subresource that has been applied. Parsing the
// schema behind them takes 70 ms. It happens once in a process, when the first configuration is applied. The zero
// value is ready for use, by several goroutines at once.
type Appliers struct {
	mu         sync.Mutex
	generation int64
	converter  managedfields.TypeConverter
	managers   map[applied]*managedfields.FieldManager
}

type applied struct {
	res         *api.Resource
	subresource string
}

// Of returns the field manager of a kind or of one of its subresources.
func (a *Appliers) Of(registry *api.Registry, res *api.Resource,
	subresource string) (*managedfields.FieldManager, error) {
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

// Types returns the schemas of all kinds of the registry.
func (a *Appliers) Types(registry *api.Registry) managedfields.TypeConverter {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refresh(registry)
	return a.converter
}

// refresh follows changes of the registry. a.mu is held.
func (a *Appliers) refresh(registry *api.Registry) {
	if kinds := registry.Snapshot(); a.converter == nil || a.generation != kinds.Generation {
		a.generation = kinds.Generation
		a.converter = applyconfigurations.NewTypeConverter(schemeOf(kinds))
		a.managers = map[applied]*managedfields.FieldManager{}
	}
}

// schemeOf returns the scheme in which the library looks up the schema names of Go types.
func schemeOf(kinds *api.Snapshot) *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, res := range kinds.Resources {
		scheme.AddKnownTypeWithName(res.GVK(), res.New())
	}
	return scheme
}

func newFieldManager(converter managedfields.TypeConverter, kind kindOf,
	subresource string) (*managedfields.FieldManager, error) {
	unreachable := unreachable(kind, subresource)
	if subresource == "scale" {
		// client-go has no schema of a Scale. Its one field is a scalar, so it needs none.
		kind = kindOf{scaleKind, api.NewRegistry(scaleKind).Snapshot()}
		converter = managedfields.NewDeducedTypeConverter()
	}
	return managedfields.NewDefaultFieldManager(converter, kind, kind, kind, kind.GVK(), kind.Stored().GroupVersion(),
		subresource, unreachable)
}

// scaleKind is the part of a registration that applying a Scale needs.
var scaleKind = &api.Resource{
	Group: "autoscaling", Version: "v1", Kind: "Scale", Plural: "scales", Namespaced: true,
	New: func() api.Object {
		return &autoscalingv1.Scale{TypeMeta: metav1.TypeMeta{Kind: "Scale", APIVersion: "autoscaling/v1"}}
	},
	NewList: func() runtime.Object { return &metav1.List{} },
}

// unreachable returns, for each version, a filter of the fields that a write to the subresource cannot change and
// therefore cannot own.
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
	for _, res := range Versions(kind.kinds, kind.Resource) {
		filters[fieldpath.APIVersion(res.GroupVersion().String())] = filter
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

// kindOf is a kind as the library needs it: it creates, defaults and converts objects of all versions of one stored
// kind.
type kindOf struct {
	*api.Resource
	kinds *api.Snapshot
}

// Versions returns the registrations of all served versions of a kind.
func Versions(kinds *api.Snapshot, of *api.Resource) []*api.Resource {
	var all []*api.Resource
	for _, res := range kinds.Resources {
		if res.Stored() == of.Stored() {
			all = append(all, res)
		}
	}
	return all
}

// Fresh returns an object with nothing but its kind and version.
func Fresh(res *api.Resource) api.Object {
	obj := res.New()
	obj.GetObjectKind().SetGroupVersionKind(res.GVK())
	return obj
}

// version returns the registration of a kind, if it is a version of this one.
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
	return Fresh(res), nil
}

func (k kindOf) Default(obj runtime.Object) {
	res, err := k.version(obj.GetObjectKind().GroupVersionKind())
	if err == nil && res.Default != nil {
		res.Default(obj.(api.Object))
	}
}

// ConvertToVersion converts between any two versions by way of the stored one.
func (k kindOf) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	from, err := k.version(in.GetObjectKind().GroupVersionKind())
	if err != nil {
		return nil, err
	}
	obj := Fresh(from)
	if document, ok := in.(runtime.Unstructured); !ok {
		obj = in.(api.Object)
	} else if err := k.Convert(document.UnstructuredContent(), obj, nil); err != nil {
		return nil, err
	}
	var all []schema.GroupVersionKind
	for _, res := range Versions(k.kinds, k.Resource) {
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
	stored, err := encoding.ConvertFrom(from, obj)
	if err != nil {
		return nil, err
	}
	return encoding.ConvertTo(to, stored)
}

func (k kindOf) Convert(in, out, _ any) error {
	doc, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encoding a %s: %w", k.Kind, err)
	}
	if err := encoding.CheckQuantities(doc, out); err != nil {
		return fmt.Errorf("decoding a %s: %w", k.Kind, err)
	}
	if err := encoding.Unmarshal(doc, out); err != nil {
		return fmt.Errorf("decoding a %s: %w", k.Kind, err)
	}
	return nil
}

func (k kindOf) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}
