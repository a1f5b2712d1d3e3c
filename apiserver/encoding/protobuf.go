package encoding

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/transcode"
	"github.com/coxswain-dev/coxswain/storage"
)

// protoMagic starts every Kubernetes protobuf document. A runtime.Unknown follows.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding-idl
var protoMagic = []byte("k8s\x00")

type protoMarshaler interface{ Marshal() ([]byte, error) }

// ProtoUnmarshaler is a type that can be decoded from protobuf.
type ProtoUnmarshaler interface{ Unmarshal([]byte) error }

func speaksProtobuf(res *api.Resource) bool {
	_, ok := res.New().(protoMarshaler)
	return ok
}

// protobufOf encodes a document in the registration's version.
func protobufOf(res *api.Resource, o *storage.Object) ([]byte, error) {
	version, kind := res.GroupVersion().String(), res.Kind
	if m, ok := transcode.Of(goType(res.New())); ok {
		body, start := beginProtobuf(len(o.JSON), version, kind)
		if body, err := m.Append(body, o.JSON); err == nil {
			return transcode.Close(body, start), nil
		}
	}
	obj := res.New()
	if err := UnmarshalNew(o.JSON, obj); err != nil {
		return nil, fmt.Errorf("decoding a stored %s: %w", res.Kind, err)
	}
	return wrapProtobuf(version, kind, obj)
}

// protobufPartialOf encodes the metadata of a document.
func protobufPartialOf(o *storage.Object) ([]byte, error) {
	var partial metav1.PartialObjectMetadata
	if err := UnmarshalNew(partialOf(o), &partial); err != nil {
		return nil, fmt.Errorf("decoding stored metadata: %w", err)
	}
	return wrapProtobuf("meta.k8s.io/v1", "PartialObjectMetadata", &partial)
}

// beginProtobuf begins a document with a runtime.Unknown: the type in field 1 and about size bytes in field 2. The
// caller appends the content and ends it with transcode.Close.
func beginProtobuf(size int, version, kind string) (body []byte, start int) {
	body = append(make([]byte, 0, size+64), protoMagic...)
	body, start = transcode.Open(body, transcode.SizedTag(1))
	body = transcode.AppendSized(body, transcode.SizedTag(1), version)
	body = transcode.AppendSized(body, transcode.SizedTag(2), kind)
	return transcode.Open(transcode.Close(body, start), transcode.SizedTag(2))
}

// goType returns the struct type that obj points to.
func goType(obj any) reflect.Type { return reflect.TypeOf(obj).Elem() }

func wrapProtobuf(apiVersion, kind string, obj any) ([]byte, error) {
	m, ok := obj.(protoMarshaler)
	if !ok {
		return nil, fmt.Errorf("%s has no protobuf form", kind)
	}
	raw, err := m.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding protobuf: %w", err)
	}
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: raw}
	body := make([]byte, len(protoMagic)+u.Size())
	copy(body, protoMagic)
	n, err := u.MarshalTo(body[len(protoMagic):])
	if err != nil {
		return nil, fmt.Errorf("encoding protobuf: %w", err)
	}
	return body[:len(protoMagic)+n], nil
}

// DecodeProtobuf decodes a client's protobuf. Unknown fields cannot be detected in protobuf.
func DecodeProtobuf(want schema.GroupVersionKind, body []byte, into ProtoUnmarshaler) error {
	u, err := unwrapProtobuf(body)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if u.Kind != want.Kind || u.APIVersion != want.GroupVersion().String() {
		return WrongKind(want, u.APIVersion, u.Kind)
	}
	if err := checkProtobufQuantities(u.Raw, into); err != nil {
		if invalid := Invalid(err, want, ""); invalid != nil {
			return invalid
		}
		return apierrors.NewBadRequest(fmt.Sprintf("decoding protobuf: %v", err))
	}
	if err := into.Unmarshal(u.Raw); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("decoding protobuf: %v", err))
	}
	return nil
}

func unwrapProtobuf(body []byte) (u runtime.Unknown, err error) {
	rest, ok := bytes.CutPrefix(body, protoMagic)
	if !ok {
		return u, errors.New("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
	}
	if err := u.Unmarshal(rest); err != nil {
		return u, fmt.Errorf("decoding protobuf: %w", err)
	}
	return u, nil
}

// jsonOfProtobuf converts a client's protobuf to JSON.
func jsonOfProtobuf(kinds *api.Snapshot, body []byte) ([]byte, error) {
	u, err := unwrapProtobuf(body)
	if err != nil {
		return nil, err
	}
	gvk := schema.FromAPIVersionAndKind(u.APIVersion, u.Kind)
	obj := requestKind(kinds, gvk)
	m, ok := obj.(ProtoUnmarshaler)
	if !ok {
		return nil, fmt.Errorf("no kind %q is registered for version %q", u.Kind, u.APIVersion)
	}
	if err := checkProtobufQuantities(u.Raw, m); err != nil {
		return nil, fmt.Errorf("decoding protobuf: %w", err)
	}
	if err := m.Unmarshal(u.Raw); err != nil {
		return nil, fmt.Errorf("decoding protobuf: %w", err)
	}
	if typed, ok := obj.(runtime.Object); ok {
		typed.GetObjectKind().SetGroupVersionKind(gvk)
	}
	return json.Marshal(obj)
}

// requestKind returns an empty value of a kind that is allowed in a request's body. DeleteOptions exist in every
// group.
func requestKind(kinds *api.Snapshot, gvk schema.GroupVersionKind) any {
	if gvk.Kind == "DeleteOptions" {
		return &metav1.DeleteOptions{}
	}
	return kinds.New(gvk)
}

// WrongKind returns the error for a body with a kind or version that does not match the request.
func WrongKind(want schema.GroupVersionKind, apiVersion, kind string) error {
	if apiVersion != "" && apiVersion != want.GroupVersion().String() {
		return apierrors.NewBadRequest(
			fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
				apiVersion, want.GroupVersion()))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s", kind,
		want.Version, want.Kind))
}
