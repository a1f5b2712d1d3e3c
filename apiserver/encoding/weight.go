package encoding

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// These functions give upper estimates of the memory for an encoding step, in bytes. They use the length of a
// document and, for a client's document, its values: a value of two bytes may become a Go struct of a kilobyte.
// TestWeight_IsAtLeastTheMemoryOfDecoding measures it.

const (
	// valueWeight is the memory of an object, or a null in place of one, in a list of the largest Go structs.
	valueWeight = 2 << 10
	// memberWeight is the memory of a scalar in a map or list.
	memberWeight = 128
	// nodeWeight is the memory of a scalar while YAML is parsed.
	nodeWeight = 768
	// protobufWeight is the memory per byte of protobuf. Two bytes may be a string.
	protobufWeight = 10
	// BodyWeight is the memory for decoding JSON, per byte and without its values.
	BodyWeight = 6
	// ObjectWeight is the memory for decoding, changing and encoding a stored object, per byte.
	ObjectWeight = 12
)

// Weight returns an upper estimate of the memory for decoding a body.
func Weight(media string, body []byte) int64 {
	size := int64(len(body))
	switch {
	case media == MediaProtobuf:
		return protobufWeight * size // ProtobufWeight adds more if the type is known
	case strings.Contains(media, "cbor"):
		return 64 * size // a single byte may be an empty map
	case strings.Contains(media, "yaml"):
		return 8*size + yamlWeight(body)
	}
	return BodyWeight*size + jsonWeight(body)
}

// jsonWeight counts values outside strings.
func jsonWeight(body []byte) (weight int64) {
	inString := false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString:
			if c == '\\' {
				i++
			} else if c == '"' {
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{', c == 'n':
			weight += valueWeight
		case c == ',', c == '[':
			weight += memberWeight
		}
	}
	return weight
}

// yamlWeight counts possible separators of values.
func yamlWeight(body []byte) (weight int64) {
	for _, separator := range []string{"\n", ",", "[", ": "} {
		weight += nodeWeight * int64(bytes.Count(body, []byte(separator)))
	}
	for _, value := range []string{"{", "- ", "-\n"} {
		weight += valueWeight * int64(bytes.Count(body, []byte(value)))
	}
	return weight
}

// ProtobufWeight does the same as Weight for a protobuf message of the type that into points to. It returns an
// error if messages are nested too deeply for the recursive decoder.
func ProtobufWeight(body []byte, into any) (int64, error) {
	u, err := unwrapProtobuf(body)
	if err != nil {
		return 0, err
	}
	below, err := messageWeight(u.Raw, reflect.TypeOf(into).Elem(), 0)
	return protobufWeight*int64(len(body)) + below, err
}

func messageWeight(message []byte, t reflect.Type, depth int) (weight int64, err error) {
	if depth > maxDepth {
		return 0, fmt.Errorf("the body is nested more than %d levels deep", maxDepth)
	}
	fields := protobufFields(t)
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return weight, nil
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return weight, nil
		}
		f, ok := fields[number]
		if ok && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			if f.entry {
				_, value = protobufEntry(value)
			}
			below, err := messageWeight(value, f.target, depth+1)
			if err != nil {
				return 0, err
			}
			weight += 2*int64(f.target.Size()) + below // lists grow by doubling
		}
		message = message[n:]
	}
	return weight, nil
}

// weight returns the memory for encoding a document in this form, per byte.
func (f *Form) weight() int64 {
	switch {
	case f.Media == MediaYAML:
		return 50
	case f.Media == MediaCBOR:
		return 20
	case f.View == ViewTable:
		return 10
	case f.Pretty, f.Media == MediaProtobuf:
		return 4
	case f.Resource.WebhookConverted:
		return 8
	}
	return 1
}

// ObjectMemory returns roughly the memory for encoding a document of that many bytes.
func (f *Form) ObjectMemory(document int) int64 { return f.weight() * int64(document) }
