package transcode

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Message describes how to write documents of one Go struct type.
type Message struct{ fields map[string]*field }

// field is one member of a JSON object.
type field struct {
	tag   Tag
	value value
	// embedded is set for a field of an embedded struct. JSON has such fields in the same object; protobuf has them
	// in a nested message.
	embedded *embedding
}

type embedding struct {
	tag   Tag
	outer *embedding
}

// known caches Messages by reflect.Type. It has nil for unsupported types.
var known sync.Map

// compiler builds Messages. Since types may contain themselves, it records the Messages it has begun.
type compiler struct{ messages map[reflect.Type]*Message }

func (c *compiler) message(t reflect.Type) (*Message, error) {
	if m := c.messages[t]; m != nil {
		return m, nil
	}
	m := &Message{fields: map[string]*field{}}
	c.messages[t] = m
	return m, c.addFields(m, t, nil)
}

func (c *compiler) addFields(m *Message, t reflect.Type, in *embedding) error {
	for i := range t.NumField() {
		f := t.Field(i)
		number, ok := protobufNumber(f)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !ok || name == "-" {
			continue // TypeMeta has no number; the message's envelope has kind and version
		}
		if f.Anonymous && name == "" {
			if f.Type.Kind() != reflect.Struct {
				return fmt.Errorf("transcode: %s.%s: embedded, but not a struct", t, f.Name)
			}
			if err := c.addFields(m, f.Type, &embedding{tag: SizedTag(number), outer: in}); err != nil {
				return err
			}
			continue
		}
		v, err := c.value(f.Type)
		if err != nil {
			return fmt.Errorf("%s.%s: %w", t, f.Name, err)
		}
		m.fields[name] = &field{tag: tagOf(number, v), value: v, embedded: outermostFirst(in)}
	}
	return nil
}

// outermostFirst reverses a chain of embeddings, so that the outermost is written first.
func outermostFirst(in *embedding) *embedding {
	var out *embedding
	for ; in != nil; in = in.outer {
		out = &embedding{tag: in.tag, outer: out}
	}
	return out
}

// protobufNumber parses tags such as `protobuf:"bytes,3,opt,name=x"`.
func protobufNumber(f reflect.StructField) (number int, ok bool) {
	parts := strings.Split(f.Tag.Get("protobuf"), ",")
	if len(parts) < 2 {
		return 0, false
	}
	number, err := strconv.Atoi(parts[1])
	return number, err == nil
}

// tagOf derives the wire type from the value. It ignores the Go tag, which is often wrong in Kubernetes' types.
func tagOf(number int, v value) Tag {
	switch v := v.(type) {
	case list:
		return tagOf(number, v.of)
	case integer, boolean:
		return Tag(number<<3 | varint)
	}
	return SizedTag(number)
}

// special lists the types with JSON that differs from their Go fields.
var special = map[reflect.Type]value{
	reflect.TypeFor[metav1.Time]():          timestamp{},
	reflect.TypeFor[resource.Quantity]():    wrapped{text{}},
	reflect.TypeFor[intstr.IntOrString]():   intOrString{},
	reflect.TypeFor[metav1.FieldsV1]():      rawJSON{},
	reflect.TypeFor[runtime.RawExtension](): rawJSON{},
}

type marshaler interface{ Marshal() ([]byte, error) }

func (c *compiler) value(t reflect.Type) (value, error) {
	if t.Kind() == reflect.Pointer {
		return c.value(t.Elem())
	}
	if v, ok := special[t]; ok {
		return v, nil
	}
	pointer := reflect.PointerTo(t)
	writes := pointer.Implements(reflect.TypeFor[marshaler]())
	if pointer.Implements(reflect.TypeFor[json.Unmarshaler]()) {
		if !writes {
			return nil, fmt.Errorf("transcode: %s has JSON of its own and no protobuf", t)
		}
		return decoded{t}, nil
	}
	switch t.Kind() {
	case reflect.String:
		return text{}, nil
	case reflect.Bool:
		return boolean{}, nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return integer{}, nil
	case reflect.Struct:
		m, err := c.message(t)
		return message{m}, err
	case reflect.Slice:
		return c.slice(t, writes)
	case reflect.Map:
		if t.Key().Kind() != reflect.String {
			break
		}
		v, err := c.value(t.Elem())
		return mapping{v, tagOf(2, v)}, err
	}
	return nil, fmt.Errorf("transcode: %s is not known", t)
}

// slice returns the value for a repeated field or for bytes. A slice type with its own encoding is a message that
// contains the slice as its first field, so that a map can contain it.
func (c *compiler) slice(t reflect.Type, writes bool) (value, error) {
	if t.Elem().Kind() == reflect.Uint8 {
		return base64Bytes{}, nil
	}
	v, err := c.value(t.Elem())
	if err != nil {
		return nil, err
	}
	if writes {
		return wrapped{list{v}}, nil
	}
	return list{v}, nil
}
