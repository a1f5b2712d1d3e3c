package cluster

import (
	"bytes"
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/storage"
)

// Nodes is the view that the Node authorizer reads (authz.Cluster).
type Nodes struct{ *Cluster }

var _ authz.Cluster = Nodes{}

// Mentioning implements admission.Cluster. It decodes only objects that have the text in their bytes.
func (c *Cluster) Mentioning(ctx context.Context, resource schema.GroupResource, text string) ([]api.Object, error) {
	return mentioning[api.Object](ctx, Nodes{c}, resource, storage.Scope{}, text)
}

// Pods implements authz.Cluster. It decodes only pods that have the text in their bytes.
func (c Nodes) Pods(ctx context.Context, node, text string) ([]*corev1.Pod, error) {
	return mentioning[*corev1.Pod](ctx, c, schema.GroupResource{Resource: "pods"}, storage.Scope{IndexValue: node},
		text)
}

// Volumes implements authz.Cluster.
func (c Nodes) Volumes(ctx context.Context, text string) ([]*corev1.PersistentVolume, error) {
	return mentioning[*corev1.PersistentVolume](ctx, c, schema.GroupResource{Resource: "persistentvolumes"},
		storage.Scope{}, text)
}

func mentioning[T api.Object](ctx context.Context, c Nodes, resource schema.GroupResource, scope storage.Scope,
	text string) ([]T, error) {
	res := c.Resource(resource)
	if res == nil {
		return nil, nil
	}
	needle := []byte(text)
	scope.Match = func(o *storage.Object) bool { return bytes.Contains(o.JSON, needle) }
	l, err := c.Objects.Collection(res).List(ctx, storage.ListRequest{Scope: scope, At: storage.At{Any: true}})
	if err != nil {
		return nil, err
	}
	found := make([]T, len(l.Items))
	for i, o := range l.Items {
		obj, err := c.decode(ctx, res, o)
		if err != nil {
			return nil, err
		}
		found[i] = obj.(T)
	}
	return found, nil
}

// Volume implements authz.Cluster.
func (c Nodes) Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	return one[*corev1.PersistentVolume](ctx, c, schema.GroupResource{Resource: "persistentvolumes"}, "", name)
}

// Claim implements authz.Cluster.
func (c Nodes) Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return one[*corev1.PersistentVolumeClaim](ctx, c, schema.GroupResource{Resource: "persistentvolumeclaims"},
		namespace, name)
}

// Attachment implements authz.Cluster.
func (c Nodes) Attachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return one[*storagev1.VolumeAttachment](ctx, c, schema.GroupResource{Group: storagev1.GroupName,
		Resource: "volumeattachments"}, "", name)
}

// Slice implements authz.Cluster.
func (c Nodes) Slice(ctx context.Context, name string) (*resourcev1.ResourceSlice, error) {
	return one[*resourcev1.ResourceSlice](ctx, c, schema.GroupResource{Group: resourcev1.GroupName,
		Resource: "resourceslices"}, "", name)
}

// one does the same as Cluster.Get, but returns nil for an object that does not exist.
func one[T api.Object](ctx context.Context, c Nodes, resource schema.GroupResource, namespace,
	name string) (T, error) {
	var none T
	obj, err := c.Get(ctx, resource, namespace, name)
	if errors.Is(err, admission.ErrNotFound) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	return obj.(T), nil
}
