// Package encoding turns objects into bytes and bytes into objects: it decodes what clients send and etcd holds by
// Kubernetes' rules (body.go, json.go, quantities.go), converts between the versions of a kind (convert.go), and
// encodes.
//
// It is given registrations, documents and objects, never a request or the server, which it must not import.
package encoding

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// A kind may be served in several versions, one of which is stored (api.View). Documents are converted at the edge:
// a client's object is converted to the stored version before anything is decided about it, and a stored object to
// the client's version when it is sent. Documents of the stored version are not touched.

// ConvertDocument returns a stored document in the version of the registration.
func ConvertDocument(res *api.Resource, o *storage.Object) (*storage.Object, error) {
	if res.View == nil {
		return current(res, o)
	}
	stored, err := Decode(res, o)
	if err != nil {
		return nil, err
	}
	obj, err := ConvertTo(res, stored)
	if err != nil {
		return nil, err
	}
	obj.SetResourceVersion("")
	doc, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encoding %s %s: %w", res.Kind, o.Key.Name, err)
	}
	return storage.NewObject(o.Key, o.Revision, doc)
}

// current returns a stored document of the stored version as the kind's schema has it now: an older one may lack fields
// that have a default, or have fields that the schema no longer knows. The document is decoded once to find out, and
// again for each reader if something differs.
func current(res *api.Resource, o *storage.Object) (*storage.Object, error) {
	if res.Schema == 0 || o.Mark() == res.Schema {
		return o, nil
	}
	obj, err := Decode(res, o)
	if err != nil {
		return nil, err
	}
	doc, err := Encode(res, obj)
	if err != nil {
		return nil, err
	}
	if o.Same(doc) {
		o.SetMark(res.Schema)
		return o, nil
	}
	return storage.NewObject(o.Key, o.Revision, doc)
}

// ConvertTo converts an object of the stored version to that of the registration. It does not change its argument.
func ConvertTo(res *api.Resource, stored api.Object) (api.Object, error) {
	if res.View == nil {
		return stored, nil
	}
	obj, err := res.View.ConvertTo(stored)
	if err != nil {
		return nil, fmt.Errorf("showing a %s as %s: %w", res.Kind, res.GroupVersion(), err)
	}
	obj.GetObjectKind().SetGroupVersionKind(res.GVK())
	return obj, nil
}

// ToStored defaults an object that a client sent by the rules of the version in which it was sent, and converts it to
// the stored version.
func ToStored(res *api.Resource, obj api.Object) (api.Object, error) {
	if res.View != nil && res.Default != nil {
		res.Default(obj)
	}
	return ConvertFrom(res, obj)
}

// ConvertFrom converts an object of the registration's version to the stored one.
func ConvertFrom(res *api.Resource, obj api.Object) (api.Object, error) {
	if res.View == nil {
		return obj, nil
	}
	stored, err := res.View.ConvertFrom(obj)
	if err != nil {
		return nil, fmt.Errorf("reading a %s of %s: %w", res.Kind, res.GroupVersion(), err)
	}
	stored.GetObjectKind().SetGroupVersionKind(res.Stored().GVK())
	return stored, nil
}

// SetDefaults sets the defaults of an object of the stored version.
func SetDefaults(res *api.Resource, obj api.Object) {
	if d := res.Stored().Default; d != nil {
		d(obj)
	}
}

// Decode decodes a stored document into the Go type of the stored version.
func Decode(res *api.Resource, o *storage.Object) (api.Object, error) {
	obj := res.Stored().New()
	if err := UnmarshalNew(o.JSON, obj); err != nil {
		return nil, fmt.Errorf("decoding a stored %s: %w", res.Kind, err)
	}
	return obj, nil
}

// Encode returns the document to store: the object without its resourceVersion.
func Encode(res *api.Resource, obj api.Object) ([]byte, error) {
	return EncodeIn(new(bytes.Buffer), res, obj)
}

// EncodeIn is Encode into an empty buffer, which owns the bytes returned.
func EncodeIn(buffer *bytes.Buffer, res *api.Resource, obj api.Object) ([]byte, error) {
	obj.SetResourceVersion("")
	obj.GetObjectKind().SetGroupVersionKind(res.Stored().GVK())
	if err := Marshal(buffer, obj); err != nil {
		return nil, fmt.Errorf("encoding %s %s: %w", res.Kind, obj.GetName(), err)
	}
	return buffer.Bytes(), nil
}
