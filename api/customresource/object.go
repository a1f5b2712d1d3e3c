// Package customresource provides the kinds that CustomResourceDefinitions define.
//
// A Definition is parsed from a stored CustomResourceDefinition without its schemas, which are most of it
// (definition.go). It provides one registration for each version (kinds.go), which the server treats like any other. A
// version's schema is compiled when an object of it is first read or written: a thousand unused definitions cost
// little more than their documents.
//
// The objects have their metadata in Kubernetes' Go type and all other fields as JSON in Go's types (object.go). They
// are decoded in the same way as by kube-apiserver (decode.go): undeclared fields are dropped, and defaults are set.
// Columns, scales and selectable fields are paths in them (columns.go, scale.go, path.go).
//
// There is no I/O here.
package customresource

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api/structural"
)

// Object is an object of any kind that a CustomResourceDefinition defines.
type Object struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Fields are the members other than apiVersion, kind and metadata, as JSON in Go's types: map[string]any, []any,
	// string, int64, float64, bool and nil. It is not nil.
	Fields map[string]any

	version *Version // its schema applies to the object
}

// Version returns the version of the kind that the object was made for.
func (o *Object) Version() *Version { return o.version }

// DeepCopyObject implements runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object {
	c := &Object{TypeMeta: o.TypeMeta, Fields: runtime.DeepCopyJSON(o.Fields), version: o.version}
	o.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return c
}

// Content returns the whole object as JSON in Go's types. The map is new, but its fields are shared with the object.
func (o *Object) Content() map[string]any {
	content := o.content()
	metadata, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&o.ObjectMeta)
	if err != nil {
		panic(fmt.Sprintf("customresource: metadata that was decoded: %v", err)) // ObjectMeta can always be converted
	}
	if o.CreationTimestamp.IsZero() {
		delete(metadata, "creationTimestamp")
	}
	content["metadata"] = metadata
	return content
}

// SetContent sets apiVersion, kind, metadata and fields from JSON in Go's types, and copies the fields. It does not
// prune or default. Malformed metadata is an error.
func (o *Object) SetContent(content map[string]any) error {
	version, _ := content["apiVersion"].(string)
	kind, _ := content["kind"].(string)
	meta := &metav1.ObjectMeta{}
	if metadata, found := content["metadata"]; found {
		var err error
		if meta, _, err = structural.ObjectMeta(metadata, false); err != nil {
			return err
		}
	}
	fields := make(map[string]any, len(content))
	for name, value := range content {
		if name != "apiVersion" && name != "kind" && name != "metadata" {
			fields[name] = runtime.DeepCopyJSONValue(value)
		}
	}
	o.TypeMeta, o.ObjectMeta, o.Fields = metav1.TypeMeta{APIVersion: version, Kind: kind}, *meta, fields
	return nil
}

// content is Content with only the parts of the metadata that schemas and rules may read.
func (o *Object) content() map[string]any {
	content := make(map[string]any, len(o.Fields)+3)
	maps.Copy(content, o.Fields)
	content["apiVersion"], content["kind"] = o.APIVersion, o.Kind
	metadata := make(map[string]any, 2)
	if o.Name != "" {
		metadata["name"] = o.Name
	}
	if o.GenerateName != "" {
		metadata["generateName"] = o.GenerateName
	}
	content["metadata"] = metadata
	return content
}

// MarshalJSONTo implements json.MarshalerTo. The fields are sorted by name.
func (o *Object) MarshalJSONTo(encoder *jsontext.Encoder) error {
	if err := o.begin(encoder); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(o.Fields)) {
		if err := encoder.WriteToken(jsontext.String(name)); err != nil {
			return err
		}
		if err := json.MarshalEncode(encoder, o.Fields[name], jsonv1.DefaultOptionsV1()); err != nil {
			return err
		}
	}
	return encoder.WriteToken(jsontext.EndObject)
}

// begin writes the members before the fields.
func (o *Object) begin(encoder *jsontext.Encoder) error {
	for _, token := range []jsontext.Token{jsontext.BeginObject, jsontext.String("apiVersion"),
		jsontext.String(o.APIVersion), jsontext.String("kind"), jsontext.String(o.Kind), jsontext.String("metadata")} {
		if err := encoder.WriteToken(token); err != nil {
			return err
		}
	}
	return json.MarshalEncode(encoder, &o.ObjectMeta, jsonv1.DefaultOptionsV1())
}

// MarshalJSON implements the standard library's json.Marshaler.
func (o *Object) MarshalJSON() ([]byte, error) {
	var doc bytes.Buffer
	err := json.MarshalWrite(&doc, o, jsonv1.DefaultOptionsV1())
	return doc.Bytes(), err
}

// UnmarshalJSON implements the standard library's json.Unmarshaler. It decodes a stored document.
func (o *Object) UnmarshalJSON(doc []byte) error { return o.DecodeStored(doc) }
