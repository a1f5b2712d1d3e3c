package cluster

import (
	"bytes"
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
)

// Admission policies see more of the cluster than other plugins do. They read and change objects as documents, in the
// version that the policy names.

// Kind implements admission.Cluster.
func (c *Cluster) Kind(kind schema.GroupVersionKind) (schema.GroupVersionResource, bool) {
	res := c.Registry.Snapshot().Kind(kind)
	if res == nil {
		return schema.GroupVersionResource{}, false
	}
	return res.GroupVersion().WithResource(res.Plural), true
}

// Changed implements admission.Cluster.
func (c *Cluster) Changed(resource schema.GroupResource) int64 {
	res := c.Resource(resource)
	if res == nil {
		return 0
	}
	revision, any := c.Objects.Collection(res).Changed()
	if !any {
		return 0
	}
	return revision
}

// Served implements admission.Cluster.
func (c *Cluster) Served(kind schema.GroupVersionKind) *api.Resource {
	return c.Registry.Snapshot().Kind(kind)
}

// Versions implements admission.Cluster.
func (c *Cluster) Versions(resource schema.GroupVersionResource) []*api.Resource {
	kinds := c.Registry.Snapshot()
	res := kinds.Resource(resource)
	if res == nil {
		return nil
	}
	return fieldmanager.Versions(kinds, res)
}

// shows finds the registration that shows an object in a version of its kind.
func (c *Cluster) shows(obj api.Object, kind schema.GroupVersionKind) *api.Resource {
	res := c.Served(kind)
	if res == nil || reflect.TypeOf(res.Stored().New()) != reflect.TypeOf(obj) {
		return nil
	}
	if o, ok := obj.(*customresource.Object); ok && o.Version().Definition().Name != res.Definition.Name {
		return nil
	}
	return res
}

// Show implements admission.Cluster.
func (c *Cluster) Show(ctx context.Context, obj api.Object, kind schema.GroupVersionKind) (map[string]any, error) {
	if res := c.shows(obj, kind); res != nil {
		var err error
		if obj, err = encoding.ConvertTo(ctx, res, obj); err != nil {
			return nil, err
		}
	}
	if o, ok := obj.(*customresource.Object); ok {
		doc := o.DeepCopyObject().(*customresource.Object).Content()
		doc["apiVersion"], doc["kind"] = kind.GroupVersion().String(), kind.Kind
		return doc, nil
	}
	doc, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("convert a %s: %w", kind.Kind, err)
	}
	doc["apiVersion"], doc["kind"] = kind.GroupVersion().String(), kind.Kind
	return doc, nil
}

// Encode implements admission.Cluster.
func (c *Cluster) Encode(ctx context.Context, obj api.Object, kind schema.GroupVersionKind) ([]byte, error) {
	if res := c.shows(obj, kind); res != nil {
		var err error
		if obj, err = encoding.ConvertTo(ctx, res, obj); err != nil {
			return nil, err
		}
	}
	if obj.GetObjectKind().GroupVersionKind() != kind {
		// Other goroutines may read the object: its kind is set in a copy of its outermost struct.
		shallow := reflect.New(reflect.TypeOf(obj).Elem())
		shallow.Elem().Set(reflect.ValueOf(obj).Elem())
		obj = shallow.Interface().(api.Object)
		obj.GetObjectKind().SetGroupVersionKind(kind)
	}
	var doc bytes.Buffer
	if err := encoding.Marshal(&doc, obj); err != nil {
		return nil, fmt.Errorf("encode a %s: %w", kind.Kind, err)
	}
	return bytes.TrimSpace(doc.Bytes()), nil
}

// Read implements admission.Cluster.
func (c *Cluster) Read(ctx context.Context, doc []byte, kind schema.GroupVersionKind, into api.Object) (error, error) {
	res := c.shows(into, kind)
	fresh := reflect.New(reflect.TypeOf(into).Elem()).Interface().(api.Object)
	if res != nil {
		fresh = res.New()
	}
	unknown, err := encoding.UnmarshalStrict(doc, fresh)
	if err != nil {
		return nil, err
	}
	var strict error
	if len(unknown) > 0 {
		strict = fmt.Errorf("strict decoding error: %s", encoding.JoinErrors(unknown))
	}
	if res != nil {
		if fresh, err = encoding.ToOwn(res, fresh); err != nil {
			return nil, err
		}
		fresh.GetObjectKind().SetGroupVersionKind(encoding.Own(res).GVK())
		encoding.SetDefaults(res, fresh)
	}
	if custom, ok := into.(*customresource.Object); ok {
		if fresh, err = custom.Version().ConvertOne(ctx, fresh); err != nil {
			return nil, err
		}
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(fresh).Elem())
	return strict, nil
}

// Merge implements admission.Cluster.
func (c *Cluster) Merge(kind schema.GroupVersionKind, doc, patch map[string]any) (map[string]any, error) {
	var converter managedfields.TypeConverter = managedfields.NewDeducedTypeConverter()
	if c.Served(kind) != nil {
		converter = c.Appliers.Types(c.Registry)
	}
	change, err := converter.ObjectToTyped(&unstructured.Unstructured{Object: patch})
	if err != nil {
		return nil, fmt.Errorf("failed to convert patch object to typed object: %w", err)
	}
	if err := fieldmanager.RejectAtomics(change); err != nil {
		return nil, fmt.Errorf("invalid ApplyConfiguration: %w", err)
	}
	live, err := converter.ObjectToTyped(&unstructured.Unstructured{Object: doc}, typed.AllowDuplicates)
	if err != nil {
		return nil, fmt.Errorf("failed to convert original object to typed object: %w", err)
	}
	merged, err := live.Merge(change)
	if err != nil {
		return nil, fmt.Errorf("failed to merge patch: %w", err)
	}
	obj, err := converter.TypedToObject(merged)
	if err != nil {
		return nil, fmt.Errorf("failed to convert typed object to object: %w", err)
	}
	return obj.(*unstructured.Unstructured).Object, nil
}

// Decide implements admission.Cluster.
func (c *Cluster) Decide(ctx context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	return c.Authorizer.Authorize(ctx, a)
}

// Authorize implements admission.Cluster.
func (c *Cluster) Authorize(ctx context.Context, user *authn.User, verb string, on schema.GroupVersionResource,
	subresource, namespace, name string) (bool, string, error) {
	decision, reason, err := c.Authorizer.Authorize(ctx, &authz.Attributes{
		User: user, Verb: verb,
		Group: on.Group, Version: on.Version, Resource: on.Resource, Subresource: subresource, Namespace: namespace,
		Name: name,
	})
	return decision == authz.Allow, reason, err
}
