// Package encoding decodes and encodes objects. It decodes documents from clients and etcd by Kubernetes' rules
// (body.go, json.go, quantities.go), converts between the versions of a kind (convert.go) and encodes responses.
//
// It works on registrations, documents and objects, never on requests. It must not import package apiserver.
package encoding

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// A kind may be served in several versions, one of which is stored (api.View). Documents in the stored version are
// sent as they are. For built-in kinds, a client's object is converted to the stored version before it is
// processed, and a stored object to the client's version when it is sent. For custom resources, conversion is
// between the document and the object (api.Resource.Convert): a request is processed in its own version.

// ConvertDocument converts a stored document to the version of the registration.
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

// ConvertDocuments converts several documents. If another server converts the kind, they are sent to it together.
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

// isCurrent reports whether a stored document is known to be in the registration's version and consistent with the
// kind's current schema. An older document may lack fields that have a default, or contain fields that the schema
// has dropped. A document is decoded once to find out. If it is not consistent, every reader decodes it again.
func isCurrent(res *api.Resource, o *storage.Object) bool {
	return res.Conversion == nil && (res.Schema == 0 || o.Mark() == res.Schema)
}

// document encodes obj, which was decoded from the stored document o. It returns o itself if the encoding is the
// same.
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
	if res.WebhookConverted { // selectors use the fields of the client's version
		options.Fields = res.SelectablePaths()
	}
	return storage.NewObjectWith(options, o.Key, o.Revision, doc.Bytes())
}

// ConvertTo converts an object to the version of the registration without modifying it. The object has the stored
// version or, for a kind with Convert, any version.
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

// Own returns the registration whose version is used to process a request's objects: res itself for a kind with
// Convert, otherwise the stored version.
func Own(res *api.Resource) *api.Resource {
	if res.Convert != nil {
		return res
	}
	return res.Stored()
}

// ToOwn sets the defaults of the client's version, then converts the object to the version of Own.
func ToOwn(res *api.Resource, obj api.Object) (api.Object, error) {
	if Own(res) == res {
		return obj, nil
	}
	if res.Default != nil {
		res.Default(obj)
	}
	return ConvertFrom(res, obj)
}

// ConvertFrom converts an object of a built-in kind from the registration's version to the stored version.
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

// SetDefaults sets the defaults of an object in the version of Own.
func SetDefaults(res *api.Resource, obj api.Object) {
	if d := Own(res).Default; d != nil {
		d(obj)
	}
}

// Decode decodes a stored document to an object in the version of Own.
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

// decode decodes a stored document of a built-in kind to the Go type of the stored version. It decodes a custom
// resource in the version of the document.
func decode(res *api.Resource, o *storage.Object) (api.Object, error) {
	obj := Own(res).New()
	if err := UnmarshalNew(o.JSON, obj); err != nil {
		return nil, fmt.Errorf("decoding a stored %s: %w", res.Kind, err)
	}
	return obj, nil
}

// Encode encodes an object in the stored version for storing, without its resourceVersion.
func Encode(res *api.Resource, obj api.Object) ([]byte, error) {
	return encode(new(bytes.Buffer), res, obj)
}

// AsStored converts an object in the version of Own to the stored version. A webhook may do that, which may also
// change labels and annotations.
func AsStored(ctx context.Context, res *api.Resource, obj api.Object) (api.Object, error) {
	obj.SetResourceVersion("")
	if stored := res.Stored(); stored.Convert != nil {
		return ConvertTo(ctx, stored, obj) // sets the defaults of the stored version for its readers
	}
	return obj, nil
}

// EncodeStored encodes an object that AsStored returned into an empty buffer. The result aliases the buffer.
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
