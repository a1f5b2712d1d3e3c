package api

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Registry is the set of resources served now. Reads are lock-free; it is safe for
// concurrent use.
type Registry struct {
	mu      sync.Mutex
	current atomic.Pointer[Snapshot]
}

// Snapshot is the set of resources at one moment. It is immutable.
type Snapshot struct {
	// Generation grows with every change of the registry.
	Generation int64
	// Resources in the order of registration.
	Resources []*Resource
	byGVR     map[schema.GroupVersionResource]*Resource
	byGVK     map[schema.GroupVersionKind]*Resource
}

// NewRegistry returns a registry of the given resources. It panics on a duplicate or an
// incomplete registration: those are programming errors.
func NewRegistry(resources ...*Resource) *Registry {
	r := &Registry{}
	r.current.Store(newSnapshot(0, nil))
	if err := r.Add(resources...); err != nil {
		panic(err)
	}
	return r
}

// Snapshot returns the current set.
func (r *Registry) Snapshot() *Snapshot { return r.current.Load() }

// Add registers resources. Nothing is added if one of them is a duplicate or incomplete.
func (r *Registry) Add(resources ...*Resource) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.current.Load()
	all := slices.Clone(old.Resources)
	for _, res := range resources {
		if res.Kind == "" || res.Plural == "" || res.Version == "" || res.New == nil || (res.NewList == nil) != res.Review {
			return fmt.Errorf("api: registration of %q is incomplete", res.Kind)
		}
		if res.Singular == "" {
			res.Singular = strings.ToLower(res.Kind)
		}
		if res.Deprecation == "" {
			res.Deprecation = res.deprecation()
		}
		if slices.ContainsFunc(all, func(o *Resource) bool {
			return o.GroupVersion() == res.GroupVersion() && (o.Plural == res.Plural || o.Kind == res.Kind)
		}) {
			return fmt.Errorf("api: %s is registered twice", res.GVK())
		}
		all = append(all, res)
	}
	r.current.Store(newSnapshot(old.Generation+1, all))
	return nil
}

// Remove takes away the named resources; those that are not there are ignored.
func (r *Registry) Remove(resources ...schema.GroupVersionResource) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.current.Load()
	rest := slices.DeleteFunc(slices.Clone(old.Resources), func(o *Resource) bool {
		return slices.Contains(resources, o.GroupVersion().WithResource(o.Plural))
	})
	r.current.Store(newSnapshot(old.Generation+1, rest))
}

func newSnapshot(generation int64, resources []*Resource) *Snapshot {
	s := &Snapshot{
		Generation: generation,
		Resources:  resources,
		byGVR:      make(map[schema.GroupVersionResource]*Resource, len(resources)),
		byGVK:      make(map[schema.GroupVersionKind]*Resource, len(resources)),
	}
	for _, r := range resources {
		s.byGVR[r.GroupVersion().WithResource(r.Plural)] = r
		s.byGVK[r.GVK()] = r
	}
	return s
}

// Resource finds a registration by its name in URLs, or nil.
func (s *Snapshot) Resource(gvr schema.GroupVersionResource) *Resource { return s.byGVR[gvr] }

// Version finds the registration that shows the same stored objects as r in another group
// and version ("autoscaling/v1"), or nil. It is r itself for r's own.
func (s *Snapshot) Version(r *Resource, groupVersion string) *Resource {
	if groupVersion == r.GroupVersion().String() {
		return r
	}
	other := s.byGVK[schema.FromAPIVersionAndKind(groupVersion, r.Kind)]
	if other == nil || other.Stored() != r.Stored() {
		return nil
	}
	return other
}

// Kind finds a registration by its kind, or nil.
func (s *Snapshot) Kind(gvk schema.GroupVersionKind) *Resource { return s.byGVK[gvk] }
