// Package encoding turns objects into bytes and bytes into objects: it decodes what clients send and etcd holds by
// Kubernetes' rules (body.go, json.go, quantities.go), converts between the versions of a kind (convert.go), and
// encodes.
//
// It is given registrations, documents and objects, never a request or the server, which it must not import.
package encoding

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// A kind may be served in several versions, one of which is stored (api.View). Documents of the stored version are not
// touched. A built-in kind's documents are converted at the edge: a client's object is converted to the stored version
// before anything is decided about it, and a stored object to the client's version when it is sent. A custom resource
// is converted between its document and its object (api.Resource.Convert): requests decide in their own version.

// ConvertDocument returns a stored document in the version of the registration.
func ConvertDocument(ctx context.Context, res *api.Resource, o *storage.Object) (*storage.Object, error) {
	if isCurrent(res, o) {
		return o, nil
	}
	if res.WebhookConverted {
		docs, err := converted.documents(ctx, res, []*storage.Object{o})
		if err != nil {
			return nil, err
		}
		return docs[0], nil
	}
	obj, err := Decode(ctx, res, o)
	if err != nil {
		return nil, err
	}
	if obj, err = ConvertTo(ctx, res, obj); err != nil {
		return nil, err
	}
	return document(res, o, obj)
}

// ConvertDocuments is ConvertDocument for many, about which another server is asked together.
func ConvertDocuments(ctx context.Context, res *api.Resource, items []*storage.Object) ([]*storage.Object, error) {
	if res.WebhookConverted {
		return converted.documents(ctx, res, items)
	}
	if res.Conversion == nil && res.Schema == 0 {
		return items, nil
	}
	docs := items
	for i, o := range items {
		if err := wanted(ctx, i); err != nil {
			return nil, err
		}
		doc, err := ConvertDocument(ctx, res, o)
		if err != nil {
			return nil, err
		}
		if doc == o {
			continue
		}
		if &docs[0] == &items[0] {
			docs = slices.Clone(items)
		}
		docs[i] = doc
	}
	return docs, nil
}

// isCurrent reports whether a stored document is known to be in the registration's version, and as the kind's schema
// has it now: an older one may lack fields that have a default, or have fields that the schema no longer knows. A
// document is decoded once to find out, and again for each reader if something differs.
func isCurrent(res *api.Resource, o *storage.Object) bool {
	return res.Conversion == nil && (res.Schema == 0 || o.Mark() == res.Schema)
}

// document is a stored document as obj, which was made of it, has it.
func document(res *api.Resource, o *storage.Object, obj api.Object) (*storage.Object, error) {
	obj.SetResourceVersion("")
	var doc bytes.Buffer
	if err := Marshal(&doc, obj); err != nil {
		return nil, fmt.Errorf("encoding %s %s: %w", res.Kind, o.Key.Name, err)
	}
	if res.Conversion == nil && o.Same(doc.Bytes()) {
		o.SetMark(res.Schema)
		return o, nil
	}
	options := storage.CollectionOptions{}
	if res.WebhookConverted { // selectors choose by the fields of the client's version
		options.Fields = res.SelectablePaths()
	}
	return storage.NewObjectWith(options, o.Key, o.Revision, doc.Bytes())
}

// ConvertTo converts an object to the version of the registration: one of the stored version or, of a kind with
// Convert, of any. It does not change its argument.
func ConvertTo(ctx context.Context, res *api.Resource, obj api.Object) (api.Object, error) {
	if res.Convert != nil {
		objs, err := res.Convert(ctx, []api.Object{obj})
		if err != nil {
			return nil, err
		}
		return objs[0], nil
	}
	if res.Conversion == nil {
		return obj, nil
	}
	shown, err := res.Conversion.ConvertTo(obj)
	if err != nil {
		return nil, fmt.Errorf("showing a %s as %s: %w", res.Kind, res.GroupVersion(), err)
	}
	shown.GetObjectKind().SetGroupVersionKind(res.GVK())
	return shown, nil
}

// Own returns the registration whose version a request's objects have while it is decided about them: its own for a
// kind with Convert, otherwise the stored one.
func Own(res *api.Resource) *api.Resource {
	if res.Convert != nil {
		return res
	}
	return res.Stored()
}

// ToOwn defaults an object that a client sent by the rules of the version in which it was sent, and converts it to the
// version of Own.
func ToOwn(res *api.Resource, obj api.Object) (api.Object, error) {
	if Own(res) == res {
		return obj, nil
	}
	if res.Default != nil {
		res.Default(obj)
	}
	return ConvertFrom(res, obj)
}

// ConvertFrom converts an object of a built-in kind from the registration's version to the stored one.
func ConvertFrom(res *api.Resource, obj api.Object) (api.Object, error) {
	if res.Conversion == nil {
		return obj, nil
	}
	stored, err := res.Conversion.ConvertFrom(obj)
	if err != nil {
		return nil, fmt.Errorf("reading a %s of %s: %w", res.Kind, res.GroupVersion(), err)
	}
	stored.GetObjectKind().SetGroupVersionKind(res.Stored().GVK())
	return stored, nil
}

// SetDefaults sets the defaults of an object of the version of Own.
func SetDefaults(res *api.Resource, obj api.Object) {
	if d := Own(res).Default; d != nil {
		d(obj)
	}
}

// Decode decodes a stored document into an object of the version of Own.
func Decode(ctx context.Context, res *api.Resource, o *storage.Object) (api.Object, error) {
	if res.WebhookConverted {
		var err error
		if o, err = ConvertDocument(ctx, res, o); err != nil {
			return nil, err
		}
	}
	obj, err := decode(res, o)
	if err != nil || res.Convert == nil {
		return obj, err
	}
	return ConvertTo(ctx, res, obj)
}

// decode decodes a stored document of a built-in kind into the Go type of the stored version, and one of a custom
// resource in the version in which it is stored.
func decode(res *api.Resource, o *storage.Object) (api.Object, error) {
	obj := Own(res).New()
	if err := UnmarshalNew(o.JSON, obj); err != nil {
		return nil, fmt.Errorf("decoding a stored %s: %w", res.Kind, err)
	}
	return obj, nil
}

// Encode returns the document to store of an object of the stored version: without its resourceVersion.
func Encode(res *api.Resource, obj api.Object) ([]byte, error) {
	return encode(new(bytes.Buffer), res, obj)
}

// AsStored converts an object of the version of Own to the stored version. Another program may do that, which may also
// change labels and annotations.
func AsStored(ctx context.Context, res *api.Resource, obj api.Object) (api.Object, error) {
	obj.SetResourceVersion("")
	if stored := res.Stored(); stored.Convert != nil {
		return ConvertTo(ctx, stored, obj) // its readers get the stored version's defaults
	}
	return obj, nil
}

// EncodeStored is Encode of an object that AsStored has returned, into an empty buffer, which owns the bytes returned.
func EncodeStored(buffer *bytes.Buffer, res *api.Resource, obj api.Object) ([]byte, error) {
	return encode(buffer, res, obj)
}

func encode(buffer *bytes.Buffer, res *api.Resource, obj api.Object) ([]byte, error) {
	obj.SetResourceVersion("")
	if res.Convert == nil {
		obj.GetObjectKind().SetGroupVersionKind(res.Stored().GVK())
	}
	if err := Marshal(buffer, obj); err != nil {
		return nil, fmt.Errorf("encoding %s %s: %w", res.Kind, obj.GetName(), err)
	}
	return buffer.Bytes(), nil
}
