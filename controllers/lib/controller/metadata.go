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

// OneSegment returns a client that takes a group, version, resource, namespace or name for one segment of a path each.
//
// client-go's typed clients refuse a name such as "node-0/proxy/logs"; its metadata client joins it to the path and
// thereby asks for something else, with the rights of the controller. A reference may hold any text that an old object
// was stored with. No object can have such a name, so the answer is NotFound, without a request.
func OneSegment(client metadata.Interface) metadata.Interface { return segmentedClient{client} }

type segmentedClient struct{ metadata.Interface }

// Resource implements metadata.Interface.
func (c segmentedClient) Resource(gvr schema.GroupVersionResource) metadata.Getter {
	all := c.Interface.Resource(gvr)
	sound := IsSegment(gvr.Group) && IsSegment(gvr.Version) && IsSegment(gvr.Resource)
	return segmentedGetter{segmented{all, gvr.GroupResource(), sound}, all}
}

type segmentedGetter struct {
	segmented
	all metadata.Getter
}

// Namespace implements metadata.Getter.
func (g segmentedGetter) Namespace(namespace string) metadata.ResourceInterface {
	return segmented{g.all.Namespace(namespace), g.of, g.sound && IsSegment(namespace)}
}

// segmented are the objects of a resource. If it is not sound, there are none.
type segmented struct {
	objects metadata.ResourceInterface
	of      schema.GroupResource
	sound   bool
}

// IsSegment reports whether s can be one segment of a path, as a name of any object can.
func IsSegment(s string) bool { return len(rest.IsValidPathSegmentName(s)) == 0 }

// check returns NotFound where the name and the subresources cannot be those of an object.
func (s segmented) check(name string, subresources ...string) error {
	sound := s.sound && IsSegment(name)
	for _, sub := range subresources {
		sound = sound && IsSegment(sub)
	}
	if !sound {
		return apierrors.NewNotFound(s.of, name)
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
func (s segmented) DeleteCollection(ctx context.Context, o metav1.DeleteOptions, which metav1.ListOptions) error {
	if err := s.check(""); err != nil {
		return err
	}
	return s.objects.DeleteCollection(ctx, o, which)
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
func (s segmented) Patch(ctx context.Context, name string, as types.PatchType, patch []byte, o metav1.PatchOptions,
	subresources ...string) (*metav1.PartialObjectMetadata, error) {
	if err := s.check(name, subresources...); err != nil {
		return nil, err
	}
	return s.objects.Patch(ctx, name, as, patch, o, subresources...)
}
