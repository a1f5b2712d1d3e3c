package encoding

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/storage"
)

// ListBody is the body of a list. Its items are encoded one at a time while it is sent. The list itself refers to
// documents that the store holds anyway; encoding it as a whole would need the same memory again for each client.
type ListBody struct {
	head, between, tail []byte
	// Len is the number of items.
	Len int
	// Size is the length of the body in bytes, or -1 if it is unknown before all items are encoded.
	Size int
	item func(ctx context.Context, buf []byte, i int) ([]byte, error)
}

// AppendHead appends the part before the first item.
func (b *ListBody) AppendHead(buf []byte) []byte { return append(buf, b.head...) }

// AppendItem appends the ith item, counted from 0, and the separator before it. It returns ctx's error if ctx has
// ended.
func (b *ListBody) AppendItem(ctx context.Context, buf []byte, i int) ([]byte, error) {
	if err := wanted(ctx, i); err != nil {
		return buf, err
	}
	if i > 0 {
		buf = append(buf, b.between...)
	}
	return b.item(ctx, buf, i)
}

// AppendTail appends the part after the last item.
func (b *ListBody) AppendTail(buf []byte) []byte { return append(buf, b.tail...) }

// whole encodes the list in one piece.
func (b *ListBody) whole(ctx context.Context) ([]byte, error) {
	buf := b.AppendHead(nil)
	var err error
	for i := range b.Len {
		if buf, err = b.AppendItem(ctx, buf, i); err != nil {
			return nil, err
		}
	}
	return b.AppendTail(buf), nil
}

// List encodes a list. Encoding a list in one piece takes less time but more memory, so List calls whole for
// permission unless the size, in bytes, is small or whole is nil. Without permission, a list in protobuf is encoded
// twice in order to determine its size first.
func (f *Form) List(ctx context.Context, l *storage.List, whole func(size int) bool) (*ListBody, error) {
	m := metav1.ListMeta{ResourceVersion: strconv.FormatInt(l.Revision, 10), Continue: l.Continue,
		RemainingItemCount: l.Remaining}
	items := l.Items
	if f.Resource.WebhookConverted && !f.converted { // converts many objects in one request
		var err error
		if items, err = ConvertDocuments(ctx, f.Resource, items); err != nil {
			return nil, err
		}
		converted := *f
		converted.converted = true
		f = &converted
	}
	if f.Media == MediaProtobuf {
		return f.protobufList(ctx, items, m, whole)
	}
	b, err := f.jsonList(items, m)
	if err != nil {
		return nil, err
	}
	switch {
	case f.Media == MediaYAML:
		return b.asYAML()
	case f.Media == MediaCBOR:
		return b.asCBOR()
	case f.Pretty:
		return b.indented()
	}
	b.tail = append(b.tail, '\n')
	if b.Size >= 0 {
		b.Size++
	}
	return b, nil
}

// jsonList encodes a list as JSON, without a final newline.
func (f *Form) jsonList(items []*storage.Object, m metav1.ListMeta) (*ListBody, error) {
	if f.View == ViewTable {
		return f.tableList(items, m, true)
	}
	kind, version := f.Resource.ListGVK().Kind, f.Resource.GroupVersion().String()
	if f.View == ViewPartial {
		kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	meta, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encoding list metadata: %w", err)
	}
	b := &ListBody{Len: len(items), Size: -1, between: []byte{','}, tail: []byte("]}"),
		head: fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, kind, version, meta),
		item: func(ctx context.Context, buf []byte, i int) ([]byte, error) {
			doc, err := f.document(ctx, items[i])
			return append(buf, doc...), err
		}}
	if f.View == ViewObject && !slices.ContainsFunc(items, f.changes) {
		b.Size = len(b.head) + max(len(items)-1, 0) + len(b.tail)
		for _, o := range items {
			b.Size += len(o.JSON)
		}
	}
	return b, nil
}

// changes reports whether a document may differ from the stored one when it is sent.
func (f *Form) changes(o *storage.Object) bool { return f.converts() && !isCurrent(f.Resource, o) }

// document returns the JSON of an item in the client's version, or of its metadata.
func (f *Form) document(ctx context.Context, o *storage.Object) ([]byte, error) {
	if f.changes(o) {
		var err error
		if o, err = ConvertDocument(ctx, f.Resource, o); err != nil {
			return nil, err
		}
	}
	if f.View == ViewPartial {
		return partialOf(o), nil
	}
	return o.JSON, nil
}

// each returns an encoder of items that applies convert to each item.
func (b *ListBody) each(convert func(buf, item []byte) ([]byte, error)) func(context.Context, []byte, int) (
	[]byte, error) {
	encode := b.item
	var doc []byte
	return func(ctx context.Context, buf []byte, i int) ([]byte, error) {
		var err error
		if doc, err = encode(ctx, doc[:0], i); err != nil {
			return buf, err
		}
		return convert(buf, doc)
	}
}

// indented indents a JSON list as json.Indent would.
func (b *ListBody) indented() (*ListBody, error) {
	var empty bytes.Buffer
	if err := json.Indent(&empty, slices.Concat(b.head, b.tail), "", "  "); err != nil {
		return nil, fmt.Errorf("indenting JSON: %w", err)
	}
	is := &ListBody{Len: b.Len, Size: -1, between: []byte{','}, tail: []byte("]\n}")}
	is.head = bytes.TrimSuffix(empty.Bytes(), is.tail)
	if b.Len > 0 {
		is.tail = []byte("\n  ]\n}")
	}
	is.item = b.each(func(buf, doc []byte) ([]byte, error) {
		indented := bytes.NewBuffer(append(buf, "\n    "...))
		if err := json.Indent(indented, doc, "    ", "  "); err != nil {
			return buf, fmt.Errorf("indenting JSON: %w", err)
		}
		return indented.Bytes(), nil
	})
	return is, nil
}
