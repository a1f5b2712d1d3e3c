package fieldmanager

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// Versions returns the registrations of all served versions of a kind.
func Versions(kinds *api.Snapshot, kind *api.Resource) []*api.Resource {
	var all []*api.Resource
	for _, res := range kinds.Resources {
		if res.Stored() == kind.Stored() {
			all = append(all, res)
		}
	}
	return all
}

// allVersions adds the other versions of a kind to the served ones, since objects may have been written in them.
func allVersions(served []*api.Resource, res *api.Resource) []*api.Resource {
	all := slices.Clone(served)
	for _, other := range append([]*api.Resource{res.Stored(), res}, res.Stored().Unserved...) {
		if !slices.Contains(all, other) {
			all = append(all, other)
		}
	}
	return all
}

// Fresh returns an object with only its kind and version set.
func Fresh(res *api.Resource) api.Object {
	obj := res.New()
	obj.GetObjectKind().SetGroupVersionKind(res.GVK())
	return obj
}

// kindOf implements the interfaces of the library: it creates, defaults and converts objects of all versions of a
// kind.
type kindOf struct {
	*api.Resource
	// versions contains all versions of the kind, served or not.
	versions []*api.Resource
	// ctx is the context of the request that needs a conversion by another server; otherwise nil.
	ctx context.Context
}

// isCustom reports whether the kind has a CustomResourceDefinition.
func (k kindOf) isCustom() bool { return k.Schema != 0 }

// version returns the registration of a version of this kind, or an error. On this error the library drops the
// entries of a removed version for built-in kinds, and fails for custom kinds.
func (k kindOf) version(gvk schema.GroupVersionKind) (*api.Resource, error) {
	i := slices.IndexFunc(k.versions, func(res *api.Resource) bool { return res.GVK() == gvk })
	switch {
	case i < 0 && k.isCustom():
		return nil, fmt.Errorf("request to convert CR to an invalid group/version: %s", gvk.GroupVersion())
	case i < 0:
		return nil, runtime.NewNotRegisteredErrForKind("Coxswain", gvk)
	}
	return k.versions[i], nil
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

// ConvertToVersion converts between any two versions. It converts built-in kinds through the stored version.
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
	for _, res := range k.versions {
		all = append(all, res.GVK())
	}
	gvk, ok := target.KindForGroupVersionKinds(all)
	if !ok && k.isCustom() {
		return nil, fmt.Errorf("%v is unstructured and is not suitable for converting to %q", from.GVK(), target)
	}
	destination, err := k.version(gvk)
	if err != nil {
		return nil, err
	}
	if from == destination {
		return obj, nil
	}
	ctx := k.ctx
	if ctx == nil {
		ctx = context.Background()
	}
	if k.isCustom() {
		converted, err := convertWhole(ctx, destination, obj)
		if err != nil {
			return nil, err
		}
		return converted[0], nil
	}
	if obj, err = encoding.ConvertFrom(from, obj); err != nil {
		return nil, err
	}
	return encoding.ConvertTo(ctx, destination, obj)
}

// convertWhole converts custom resources as the library does in kube-apiserver: they keep fields that are unknown
// in the target version. The library later rejects these fields.
func convertWhole(ctx context.Context, to *api.Resource, objs ...api.Object) ([]api.Object, error) {
	return to.New().(*customresource.Object).Version().ConvertWhole(ctx, objs)
}

// Convert implements runtime.ObjectConvertor: it decodes an object from its content.
func (k kindOf) Convert(in, out, _ any) error {
	content, isContent := in.(map[string]any)
	if custom, ok := out.(*customresource.Object); ok && isContent {
		if err := custom.SetContent(content); err != nil {
			return fmt.Errorf("decoding a %s: %w", k.Kind, err)
		}
		return nil
	}
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
