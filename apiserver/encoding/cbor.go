package encoding

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

// CBOR (RFC 8949) is an alternative encoding of documents (KEP-4222). It is converted to and from JSON here;
// objects are not stored as CBOR.

// cborMagic starts every document: it is the tag of self-described CBOR.
const cborMagic = "\xd9\xd9\xf7"

// JSONOfCBOR converts a client's CBOR to JSON. A duplicate key is always an error in CBOR, regardless of
// fieldValidation.
func JSONOfCBOR(body []byte) ([]byte, error) {
	var doc any
	if err := cbor.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("decoding CBOR: %w", err)
	}
	return json.Marshal(doc)
}

// cborOfJSON converts JSON to a self-described CBOR document.
func cborOfJSON(doc []byte) ([]byte, error) {
	var value any
	if err := Unmarshal(doc, &value); err != nil {
		return nil, fmt.Errorf("decoding a document: %w", err)
	}
	body, err := cbor.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encoding CBOR: %w", err)
	}
	return append([]byte(cborMagic), body...), nil
}

// appendCBOREvent appends a metav1.WatchEvent to a sequence of CBOR items.
func appendCBOREvent(buf []byte, event string, doc []byte) ([]byte, error) {
	object, err := cborOfJSON(doc)
	if err != nil {
		return buf, err
	}
	item, err := cbor.Marshal(metav1.WatchEvent{Type: event, Object: runtime.RawExtension{Raw: object}})
	if err != nil {
		return buf, fmt.Errorf("encoding CBOR: %w", err)
	}
	return append(append(buf, cborMagic...), item...), nil
}
