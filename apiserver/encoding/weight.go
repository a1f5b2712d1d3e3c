package encoding

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// How much memory an encoding step takes is estimated from above, in bytes: by the length of a document and, for one
// that a client sent, by the values in it. A value of two bytes may become a Go struct of a kilobyte.
// TestWeight_IsNoLessThanWhatDecodingTakes measures.

const (
	// valueWeight is what an object, or a null that stands for one, takes in a list of the largest Go structs.
	valueWeight = 2 << 10
	// memberWeight is what a scalar takes in a map or a list.
	memberWeight = 128
	// nodeWeight is what one takes while YAML is parsed.
	nodeWeight = 768
	// protobufWeight is for each byte of protobuf, of which two may be a string.
	protobufWeight = 10
	// BodyWeight is what decoding a body in JSON takes for each of its bytes, beside its values.
	BodyWeight = 6
	// ObjectWeight is what decoding, changing and encoding a stored object takes for each of its bytes.
	ObjectWeight = 12
)

// Weight is about how many bytes decoding a body takes, at most.
func Weight(media string, body []byte) int64 {
	size := int64(len(body))
	switch {
	case media == MediaProtobuf:
		return protobufWeight * size // and more by ProtobufWeight, where the type is known
	case strings.Contains(media, "cbor"):
		return 64 * size // of which a byte may be an empty map
	case strings.Contains(media, "yaml"):
		return 8*size + yamlWeight(body)
	}
	return BodyWeight*size + jsonWeight(body)
}

// jsonWeight counts values outside of strings.
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

// yamlWeight counts what may separate values.
func yamlWeight(body []byte) (weight int64) {
	for _, separator := range []string{"\n", ",", "[", ": "} {
		weight += nodeWeight * int64(bytes.Count(body, []byte(separator)))
	}
	for _, value := range []string{"{", "- ", "-\n"} {
		weight += valueWeight * int64(bytes.Count(body, []byte(value)))
	}
	return weight
}

// ProtobufWeight is Weight for a protobuf message of the type that into points to. It returns an error if messages are
// nested too deeply for its decoder, which calls itself.
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
		f, known := fields[number]
		if known && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			if f.entry {
				_, value = protobufEntry(value)
			}
			below, err := messageWeight(value, f.of, depth+1)
			if err != nil {
				return 0, err
			}
			weight += 2*int64(f.of.Size()) + below // lists grow by doubling
		}
		message = message[n:]
	}
	return weight, nil
}

// weight is what a document takes in a form, for each of its bytes.
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

// ObjectMemory is about how many bytes encoding a document of so many bytes takes.
func (f *Form) ObjectMemory(document int) int64 { return f.weight() * int64(document) }
