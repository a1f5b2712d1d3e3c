package customresource

import (
	"context"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// Converter calls the webhook that converts objects, for a definition with the conversion strategy Webhook.
type Converter interface {
	// Convert returns the objects in another version, in the same order. They belong to one definition and have any of
	// its other versions. It does not change them.
	Convert(ctx context.Context, objs []*Object, version *Version) ([]*Object, error)
}

// remote reports whether a webhook converts the kind's objects.
func (k *kind) remote() bool {
	c := k.definition.Spec.Conversion
	return c != nil && c.Strategy == apiextensionsv1.WebhookConverter
}

// Convert converts objects of the kind to the version, and keeps their order. It does not change them. It returns
// objects that already have the version as they are.
func (v *Version) Convert(ctx context.Context, objs []api.Object) ([]api.Object, error) {
	converted, err := v.ConvertWhole(ctx, objs)
	if err != nil {
		return nil, err
	}
	for i, obj := range converted {
		if obj == objs[i] {
			continue
		}
		schema, err := v.Schema()
		if err != nil {
			return nil, err
		}
		obj.(*Object).coerce(schema)
	}
	return converted, nil
}

// ConvertWhole is Convert without pruning: it keeps fields that the version's schema does not declare.
func (v *Version) ConvertWhole(ctx context.Context, objs []api.Object) ([]api.Object, error) {
	var indexes []int
	for i, obj := range objs {
		if o := obj.(*Object); o.APIVersion != v.APIVersion() {
			indexes = append(indexes, i)
		}
	}
	if len(indexes) == 0 || v.kind.remote() && v.kind.converter == nil {
		return objs, nil
	}
	converted, err := v.others(ctx, objs, indexes)
	if err != nil {
		return nil, err
	}
	objs = slices.Clone(objs)
	for i, o := range converted {
		objs[indexes[i]] = o
	}
	return objs, nil
}

// others converts the objects at these indexes, which have other versions.
func (v *Version) others(ctx context.Context, objs []api.Object, indexes []int) ([]*Object, error) {
	others := make([]*Object, len(indexes))
	for i, index := range indexes {
		o := objs[index].(*Object)
		if !v.kind.remote() {
			others[i] = o.DeepCopyObject().(*Object)
			others[i].version, others[i].APIVersion = v, v.APIVersion()
			continue
		}
		if v.kind.version(o.APIVersion) == nil {
			return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s", o.APIVersion)
		}
		others[i] = o
	}
	if !v.kind.remote() {
		return others, nil
	}
	return v.kind.converter.Convert(ctx, others, v)
}

// Object makes an object of the version, which takes ownership of the fields.
func (v *Version) Object(kind string, meta metav1.ObjectMeta, fields map[string]any) *Object {
	return &Object{TypeMeta: metav1.TypeMeta{APIVersion: v.APIVersion(), Kind: kind}, ObjectMeta: meta, Fields: fields,
		version: v}
}

// ConvertOne is Convert for one object.
func (v *Version) ConvertOne(ctx context.Context, obj api.Object) (api.Object, error) {
	objs, err := v.Convert(ctx, []api.Object{obj})
	if err != nil {
		return nil, err
	}
	return objs[0], nil
}
