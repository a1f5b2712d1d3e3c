package encoding

import (
	"context"
	"encoding/binary"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/transcode"
	"github.com/coxswain-dev/coxswain/storage"
)

// A list in protobuf is preceded by its length. All lists in Kubernetes are messages with the metadata in field 1
// and the items in field 2.

// maxSmallList limits the lists that are always encoded in one piece, in bytes of documents.
const maxSmallList = 128 << 10

// protobufList encodes a list. It encodes a small list, or one that whole permits, in one piece. Otherwise it
// encodes the list twice, first to determine the sizes.
func (f *Form) protobufList(ctx context.Context, items []*storage.Object, m metav1.ListMeta,
	whole func(size int) bool) (*ListBody, error) {
	meta, err := m.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding list metadata: %w", err)
	}
	version, kind, encode := f.protobufItem()
	item := func(ctx context.Context, buf []byte, i int) ([]byte, error) {
		doc, err := f.document(ctx, items[i])
		if err != nil {
			return buf, err
		}
		return encode(buf, doc)
	}
	size := len(meta)
	for _, o := range items {
		size += len(o.JSON)
	}
	if size <= maxSmallList || whole == nil || whole(size) {
		return protobufWhole(ctx, item, len(items), size, version, kind, meta)
	}
	return protobufParts(ctx, item, len(items), version, kind, meta)
}

type appendItem = func(ctx context.Context, buf []byte, i int) ([]byte, error)

// protobufWhole encodes a list of n items, about size bytes, in one piece.
func protobufWhole(ctx context.Context, item appendItem, n, size int, version, kind string, meta []byte) (
	*ListBody, error) {
	body, list := beginProtobuf(size, version, kind)
	body = transcode.AppendSized(body, transcode.SizedTag(1), meta)
	for i := range n {
		err := wanted(ctx, i)
		if err != nil {
			return nil, err
		}
		var start int
		body, start = transcode.Open(body, transcode.SizedTag(2))
		if body, err = item(ctx, body, i); err != nil {
			return nil, err
		}
		body = transcode.Close(body, start)
	}
	body = transcode.Close(body, list)
	return &ListBody{head: body, Size: len(body)}, nil
}

// protobufParts encodes a list of n items lazily, after determining the sizes.
func protobufParts(ctx context.Context, item appendItem, n int, version, kind string, meta []byte) (
	*ListBody, error) {
	sizes := make([]uint32, n)
	inner := len(transcode.AppendSized(nil, transcode.SizedTag(1), meta))
	var buf []byte
	for i := range n {
		err := wanted(ctx, i)
		if err != nil {
			return nil, err
		}
		if buf, err = item(ctx, buf[:0], i); err != nil {
			return nil, err
		}
		sizes[i] = uint32(len(buf))
		inner += len(appendSize(nil, sizes[i])) + len(buf)
	}
	head, start := beginProtobuf(0, version, kind)
	head = binary.AppendUvarint(head[:start-1], uint64(inner))
	head = transcode.AppendSized(head, transcode.SizedTag(1), meta)
	b := &ListBody{Len: n, head: head, Size: len(head) + inner - len(transcode.AppendSized(nil, transcode.SizedTag(1),
		meta))}
	b.item = func(ctx context.Context, buf []byte, i int) ([]byte, error) {
		buf = appendSize(buf, sizes[i])
		start := len(buf)
		buf, err := item(ctx, buf, i)
		if err == nil && len(buf)-start != int(sizes[i]) {
			err = fmt.Errorf("an item of a list of %s took %d bytes, and then %d", kind, sizes[i], len(buf)-start)
		}
		return buf, err
	}
	return b, nil
}

// appendSize appends the part before an item of a list.
func appendSize(buf []byte, size uint32) []byte {
	buf, start := transcode.Open(buf, transcode.SizedTag(2))
	return binary.AppendUvarint(buf[:start-1], uint64(size))
}

// protobufItem returns the encoder for the documents of a list, and the list's version and kind.
func (f *Form) protobufItem() (version, kind string, encode func(buf, doc []byte) ([]byte, error)) {
	item := any(f.Resource.New())
	version, kind = f.Resource.GroupVersion().String(), f.Resource.ListGVK().Kind
	if f.View == ViewPartial {
		item = &metav1.PartialObjectMetadata{}
		version, kind = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	goType := goType(item)
	message, quick := transcode.Of(goType)
	return version, kind, func(buf, doc []byte) ([]byte, error) {
		if quick {
			if with, err := message.Append(buf, doc); err == nil {
				return with, nil
			}
		}
		obj := reflect.New(goType).Interface()
		if err := UnmarshalNew(doc, obj); err != nil {
			return buf, fmt.Errorf("decoding a stored %s: %w", f.Resource.Kind, err)
		}
		m, ok := obj.(protoMarshaler)
		if !ok {
			return buf, fmt.Errorf("%s has no protobuf form", f.Resource.Kind)
		}
		encoded, err := m.Marshal()
		if err != nil {
			return buf, fmt.Errorf("encoding protobuf: %w", err)
		}
		return append(buf, encoded...), nil
	}
}
