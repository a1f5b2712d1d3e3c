package controller

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// OneSegment returns a client that treats each group, version, resource, namespace and name as a single segment
// of a path.
//
// client-go's typed clients reject a name such as "node-0/proxy/logs". Its metadata client appends it to the
// path, and so requests something else with the rights of the controller. A reference may hold any text that an
// old object was stored with. No object can have such a name, so the answer is NotFound, without a request.
func OneSegment(client metadata.Interface) metadata.Interface { return segmentedClient{client} }

type segmentedClient struct{ metadata.Interface }

// Resource implements metadata.Interface.
func (c segmentedClient) Resource(gvr schema.GroupVersionResource) metadata.Getter {
	all := c.Interface.Resource(gvr)
	valid := IsSegment(gvr.Group) && IsSegment(gvr.Version) && IsSegment(gvr.Resource)
	return segmentedGetter{segmented{all, gvr.GroupResource(), valid}, all}
}

type segmentedGetter struct {
	segmented
	all metadata.Getter
}

// Namespace implements metadata.Getter.
func (g segmentedGetter) Namespace(namespace string) metadata.ResourceInterface {
	return segmented{g.all.Namespace(namespace), g.resource, g.valid && IsSegment(namespace)}
}

// segmented accesses the objects of a resource. If it is not valid, there are none.
type segmented struct {
	objects  metadata.ResourceInterface
	resource schema.GroupResource
	valid    bool
}

// IsSegment reports whether s can be one segment of a path, as the name of every object can.
func IsSegment(s string) bool { return len(rest.IsValidPathSegmentName(s)) == 0 }

// check returns NotFound if no object can have the name and the subresources.
func (s segmented) check(name string, subresources ...string) error {
	valid := s.valid && IsSegment(name)
	for _, sub := range subresources {
		valid = valid && IsSegment(sub)
	}
	if !valid {
		return apierrors.NewNotFound(s.resource, name)
	}
	return nil
}

// Delete implements metadata.ResourceInterface.
func (s segmented) Delete(ctx context.Context, name string, o metav1.DeleteOptions, subresources ...string) error {
	if err := s.check(name, subresources...); err != nil {
		return err
	}
	return s.objects.Delete(ctx, name, o, subresources...)
}

// DeleteCollection implements metadata.ResourceInterface.
func (s segmented) DeleteCollection(ctx context.Context, o metav1.DeleteOptions, selection metav1.ListOptions) error {
	if err := s.check(""); err != nil {
		return err
	}
	return s.objects.DeleteCollection(ctx, o, selection)
}

// Get implements metadata.ResourceInterface.
func (s segmented) Get(ctx context.Context, name string, o metav1.GetOptions, subresources ...string) (
	*metav1.PartialObjectMetadata, error) {
	if err := s.check(name, subresources...); err != nil {
		return nil, err
	}
	return s.objects.Get(ctx, name, o, subresources...)
}

// List implements metadata.ResourceInterface.
func (s segmented) List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	if err := s.check(""); err != nil {
		return nil, err
	}
	return s.objects.List(ctx, o)
}

// Watch implements metadata.ResourceInterface.
func (s segmented) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if err := s.check(""); err != nil {
		return nil, err
	}
	return s.objects.Watch(ctx, o)
}

// Patch implements metadata.ResourceInterface.
func (s segmented) Patch(ctx context.Context, name string, format types.PatchType, patch []byte, o metav1.PatchOptions,
	subresources ...string) (*metav1.PartialObjectMetadata, error) {
	if err := s.check(name, subresources...); err != nil {
		return nil, err
	}
	return s.objects.Patch(ctx, name, format, patch, o, subresources...)
}
