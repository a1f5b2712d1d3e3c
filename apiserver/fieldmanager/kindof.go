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

// kindOf is a kind as the library needs it: it creates, defaults and converts objects of all versions of one stored
// kind.
type kindOf struct {
	*api.Resource
	// versions are those that are served, and the one in which objects are stored.
	versions []*api.Resource
	// ctx is the request's for which objects are converted, nil where that needs none.
	ctx context.Context
}

// isCustom reports whether a definition defines the kind.
func (k kindOf) isCustom() bool { return k.Schema != 0 }

// version returns the registration of a kind, if it is a version of this one.
func (k kindOf) version(gvk schema.GroupVersionKind) (*api.Resource, error) {
	i := slices.IndexFunc(k.versions, func(res *api.Resource) bool { return res.GVK() == gvk })
	if i < 0 {
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

// ConvertToVersion converts between any two versions: those of a built-in kind by way of the stored one.
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
	gvk, _ := target.KindForGroupVersionKinds(all)
	to, err := k.version(gvk)
	if err != nil {
		return nil, err
	}
	if from == to {
		return obj, nil
	}
	ctx := k.ctx
	if ctx == nil {
		ctx = context.Background()
	}
	if to.Convert == nil {
		if obj, err = encoding.ConvertFrom(from, obj); err != nil {
			return nil, err
		}
	}
	return encoding.ConvertTo(ctx, to, obj)
}

// Convert implements runtime.ObjectConvertor: it makes an object of its content.
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
