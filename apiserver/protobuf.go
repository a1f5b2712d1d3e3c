package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/transcode"
	"github.com/coxswain-dev/coxswain/storage"
)

// protoMagic begins every Kubernetes protobuf document; a runtime.Unknown follows.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding-idl
var protoMagic = []byte("k8s\x00")

type protoMarshaler interface{ Marshal() ([]byte, error) }

type protoUnmarshaler interface{ Unmarshal([]byte) error }

func speaksProtobuf(res *api.Resource) bool {
	_, ok := res.New().(protoMarshaler)
	return ok
}

// protobufOf makes protobuf of one document in the version that the request is for.
func protobufOf(r *request, o *storage.Object) ([]byte, error) {
	version, kind := r.res.GroupVersion().String(), r.res.Kind
	if m, ok := transcode.Of(goType(r.res.New())); ok {
		body, at := beginProtobuf(len(o.JSON), version, kind)
		if body, err := m.Append(body, o.JSON); err == nil {
			return transcode.Close(body, at), nil
		}
	}
	obj := r.res.New()
	if err := unmarshalObject(o.JSON, obj); err != nil {
		return nil, fmt.Errorf("decoding a stored %s: %w", r.res.Kind, err)
	}
	return wrapProtobuf(version, kind, obj)
}

// protobufPartialOf makes protobuf of one document's metadata.
func protobufPartialOf(o *storage.Object) ([]byte, error) {
	var partial metav1.PartialObjectMetadata
	if err := unmarshalObject(partialOf(o), &partial); err != nil {
		return nil, fmt.Errorf("decoding stored metadata: %w", err)
	}
	return wrapProtobuf("meta.k8s.io/v1", "PartialObjectMetadata", &partial)
}

// protobufListOf makes protobuf of the documents of a list, as the view has them.
func protobufListOf(r *request, docs [][]byte, m metav1.ListMeta) ([]byte, error) {
	var list, item any = r.res.NewList(), r.res.New()
	version, kind := r.res.GroupVersion().String(), r.res.Kind+"List"
	if r.out.view == viewPartial {
		list, item = &metav1.PartialObjectMetadataList{}, &metav1.PartialObjectMetadata{}
		version, kind = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	if body, ok := transcodeList(r, item, version, kind, docs, m); ok {
		return body, nil
	}
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	head, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encoding list metadata: %w", err)
	}
	if err := unmarshalObject(joinList(fmt.Appendf(nil, `{"metadata":%s,"items":[`, head), docs), list); err != nil {
		return nil, fmt.Errorf("decoding a stored list of %s: %w", r.res.Kind, err)
	}
	return wrapProtobuf(version, kind, list)
}

// transcodeList is protobufListOf without decoding. All lists of Kubernetes are a message
// of the metadata, 1, and the items, 2. It reports false where decoding it must be.
func transcodeList(r *request, item any, version, kind string, docs [][]byte, m metav1.ListMeta) ([]byte, bool) {
	items, ok := transcode.Of(goType(item))
	meta, err := m.Marshal()
	if !ok || err != nil {
		return nil, false
	}
	size := len(meta)
	for _, doc := range docs {
		size += len(doc)
	}
	body, list := beginProtobuf(size, version, kind)
	body = transcode.AppendSized(body, transcode.SizedTag(1), meta)
	for i, doc := range docs {
		if r.wanted(i) != nil {
			return nil, false
		}
		var at int
		body, at = transcode.Open(body, transcode.SizedTag(2))
		if body, err = items.Append(body, doc); err != nil {
			return nil, false
		}
		body = transcode.Close(body, at)
	}
	return transcode.Close(body, list), true
}

// beginProtobuf begins a document with a runtime.Unknown: the type in field 1, and what is
// to follow, about size bytes, in field 2, which ends with transcode.Close.
func beginProtobuf(size int, version, kind string) (body []byte, at int) {
	body = append(make([]byte, 0, size+64), protoMagic...)
	body, at = transcode.Open(body, transcode.SizedTag(1))
	body = transcode.AppendSized(body, transcode.SizedTag(1), version)
	body = transcode.AppendSized(body, transcode.SizedTag(2), kind)
	return transcode.Open(transcode.Close(body, at), transcode.SizedTag(2))
}

// goType is the struct type behind a pointer.
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

// decodeProtobuf reads what a client sent as protobuf, which has no unknown fields.
func decodeProtobuf(want schema.GroupVersionKind, body []byte, into protoUnmarshaler) error {
	u, err := unwrapProtobuf(body)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if u.Kind != want.Kind || u.APIVersion != want.GroupVersion().String() {
		return wrongKind(want, u.APIVersion, u.Kind)
	}
	if err := checkProtobufQuantities(u.Raw, goType(into)); err != nil {
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

// jsonOfProtobuf makes JSON of a document that a client sent as protobuf.
func jsonOfProtobuf(kinds *api.Snapshot, body []byte) ([]byte, error) {
	u, err := unwrapProtobuf(body)
	if err != nil {
		return nil, err
	}
	gvk := schema.FromAPIVersionAndKind(u.APIVersion, u.Kind)
	obj := requestKind(kinds, gvk)
	m, ok := obj.(protoUnmarshaler)
	if !ok {
		return nil, fmt.Errorf("no kind %q is registered for version %q", u.Kind, u.APIVersion)
	}
	if err := checkProtobufQuantities(u.Raw, goType(m)); err != nil {
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

// requestKind returns an empty value of a kind that a request's body may have.
func requestKind(kinds *api.Snapshot, gvk schema.GroupVersionKind) any {
	if res := kinds.Kind(gvk); res != nil {
		return res.New()
	}
	switch gvk.Kind {
	case "DeleteOptions":
		return &metav1.DeleteOptions{}
	case "Binding":
		return &corev1.Binding{}
	case "Scale":
		return &autoscalingv1.Scale{}
	case "Eviction":
		return &policyv1.Eviction{}
	}
	return nil
}
