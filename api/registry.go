package api

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Registry is the current set of served resources. Reads are lock-free. It is safe for concurrent use.
type Registry struct {
	mu      sync.Mutex
	current atomic.Pointer[Snapshot]
}

// Snapshot is an immutable set of resources: the registry's contents at one moment.
type Snapshot struct {
	// Generation increases with every change of the registry.
	Generation int64
	// Resources are in registration order.
	Resources []*Resource
	byGVR     map[schema.GroupVersionResource]*Resource
	byGVK     map[schema.GroupVersionKind]*Resource
	// bodies create empty objects of the subresources' kinds.
	bodies map[schema.GroupVersionKind]func() Object
}

// NewRegistry returns a registry of the given resources. It panics if one is a duplicate or incomplete, since that is
// a programming error.
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

// Add registers resources. It adds none if one of them is a duplicate or incomplete.
func (r *Registry) Add(resources ...*Resource) error { return r.Replace(nil, resources) }

// Replace removes some resources and adds others in one step. If one of the added resources is a duplicate or
// incomplete, it returns an error and leaves the registry unchanged.
func (r *Registry) Replace(remove, add []*Resource) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.current.Load()
	removed := make(map[*Resource]bool, len(remove))
	for _, res := range remove {
		removed[res] = true
	}
	all := slices.DeleteFunc(slices.Clone(old.Resources), func(o *Resource) bool { return removed[o] })
	plurals, kinds := map[schema.GroupVersionResource]bool{}, map[schema.GroupVersionKind]bool{}
	for _, o := range all {
		plurals[o.GroupVersion().WithResource(o.Plural)], kinds[o.GVK()] = true, true
	}
	for _, res := range add {
		if res.Kind == "" || res.Plural == "" || res.Version == "" || res.New == nil ||
			(res.NewList == nil) != res.CreateOnly {
			return fmt.Errorf("api: registration of %q is incomplete", res.Kind)
		}
		if res.Singular == "" {
			res.Singular = strings.ToLower(res.Kind)
		}
		if res.Deprecation == "" {
			res.Deprecation = res.deprecation()
		}
		plural := res.GroupVersion().WithResource(res.Plural)
		if plurals[plural] || kinds[res.GVK()] {
			return fmt.Errorf("api: %s is registered twice", res.GVK())
		}
		plurals[plural], kinds[res.GVK()] = true, true
		all = append(all, res)
	}
	r.current.Store(newSnapshot(old.Generation+1, all))
	return nil
}

func newSnapshot(generation int64, resources []*Resource) *Snapshot {
	s := &Snapshot{
		Generation: generation,
		Resources:  resources,
		byGVR:      make(map[schema.GroupVersionResource]*Resource, len(resources)),
		byGVK:      make(map[schema.GroupVersionKind]*Resource, len(resources)),
		bodies:     map[schema.GroupVersionKind]func() Object{},
	}
	for _, r := range resources {
		s.byGVR[r.GroupVersion().WithResource(r.Plural)] = r
		s.byGVK[r.GVK()] = r
		for _, sub := range r.AllSubresources() {
			if sub.New != nil {
				s.bodies[schema.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}] = sub.New
			}
		}
	}
	return s
}

// Without returns the snapshot without the resources of some groups and versions, or s itself if it has none of them.
func (s *Snapshot) Without(gvs map[schema.GroupVersion]bool) *Snapshot {
	left := slices.DeleteFunc(slices.Clone(s.Resources), func(r *Resource) bool { return gvs[r.GroupVersion()] })
	if len(left) == len(s.Resources) {
		return s
	}
	return newSnapshot(s.Generation, left)
}

// Resource returns the registration with a plural name, or nil.
func (s *Snapshot) Resource(gvr schema.GroupVersionResource) *Resource { return s.byGVR[gvr] }

// Version returns the registration that serves r's stored objects in another group and version ("autoscaling/v1"), or
// nil if there is none. For r's own group and version it returns r itself.
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

// Kind returns the registration of a kind, or nil.
func (s *Snapshot) Kind(gvk schema.GroupVersionKind) *Resource { return s.byGVK[gvk] }

// New returns an empty object of a kind that a request may send: a resource's or a subresource's. It returns nil for
// other kinds.
func (s *Snapshot) New(gvk schema.GroupVersionKind) Object {
	if res := s.byGVK[gvk]; res != nil {
		return res.New()
	}
	if empty := s.bodies[gvk]; empty != nil {
		return empty()
	}
	return nil
}
