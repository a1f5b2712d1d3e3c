package encoding

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"sigs.k8s.io/yaml"
)

// asYAML converts a JSON list to YAML. Since keys are sorted, some follow the items.
func (b *ListBody) asYAML() (*ListBody, error) {
	empty, err := yaml.JSONToYAML(slices.Concat(b.head, b.tail))
	if err != nil {
		return nil, fmt.Errorf("converting to YAML: %w", err)
	}
	const none = ": []\n"
	offset := -1
	for _, items := range []string{"\nitems", "\nrows"} { // no other line of the list itself starts with these
		if i := bytes.Index(empty, []byte(items+none)); i >= 0 {
			offset = i + len(items)
		}
	}
	if b.Len == 0 || offset < 0 {
		return &ListBody{head: empty, Size: len(empty)}, nil
	}
	is := &ListBody{Len: b.Len, Size: -1, head: append(empty[:offset:offset], ":\n"...), tail: empty[offset+len(none):]}
	is.item = b.each(func(buf, doc []byte) ([]byte, error) {
		doc, err := yaml.JSONToYAML(doc)
		if err != nil {
			return buf, fmt.Errorf("converting to YAML: %w", err)
		}
		return appendElement(buf, doc), nil
	})
	return is, nil
}

// appendElement appends a YAML document as an element of a block sequence.
func appendElement(buf, doc []byte) []byte {
	indent := "- "
	for line := range bytes.Lines(doc) {
		if len(line) > 1 { // an empty line is part of a block scalar
			buf = append(buf, indent...)
		}
		buf, indent = append(buf, line...), "  "
	}
	return buf
}

// asCBOR converts a JSON list, which must not be a Table, to self-described CBOR.
func (b *ListBody) asCBOR() (*ListBody, error) {
	var list struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
		Metadata   any    `json:"metadata"`
	}
	if err := json.Unmarshal(slices.Concat(b.head, b.tail), &list); err != nil {
		return nil, fmt.Errorf("encoding CBOR: %w", err)
	}
	const mapOfFour = 0xa4
	is := &ListBody{Len: b.Len, Size: -1, head: append([]byte(cborMagic), mapOfFour)}
	for _, part := range []any{"kind", list.Kind, "apiVersion", list.APIVersion, "metadata", list.Metadata, "items"} {
		item, err := cbor.Marshal(part)
		if err != nil {
			return nil, fmt.Errorf("encoding CBOR: %w", err)
		}
		is.head = append(is.head, item...)
	}
	const arrayOfLength32 = 0x9a // RFC 8949, section 3
	is.head = binary.BigEndian.AppendUint32(append(is.head, arrayOfLength32), uint32(b.Len))
	is.item = b.each(func(buf, doc []byte) ([]byte, error) {
		item, err := cborOfJSON(doc)
		if err != nil {
			return buf, err
		}
		return append(buf, item[len(cborMagic):]...), nil
	})
	return is, nil
}
