package structural

import (
	"fmt"
	"reflect"
	"time"

	celtypes "github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/kube-openapi/pkg/validation/strfmt"

	"github.com/coxswain-dev/coxswain/api/cel"
)

// ruleValue wraps a value for expressions. By its schema, a string may be a time and a list a set, and null fields of
// an object are missing. Its parts are wrapped when they are read. A value that does not fit its schema becomes an
// error in expressions.
func ruleValue(value any, s *Schema) ref.Val {
	if value == nil {
		if s.nullable {
			return celtypes.NullValue
		}
		return celtypes.NewErr("invalid data, got null for schema with nullable=false")
	}
	switch s.types {
	case integer | text:
		switch value := value.(type) {
		case string:
			return celtypes.String(value)
		case int64:
			return celtypes.Int(value)
		}
		return celtypes.NewErr("invalid data, expected XIntOrString value to be either a string or integer")
	case object:
		fields, ok := value.(map[string]any)
		if !ok {
			return celtypes.NewErr("invalid data, expected a map for the provided schema with type=object")
		}
		if s.embedded {
			s = s.withTypeMeta()
		}
		return &objectValue{fields: fields, schema: s}
	case array:
		list, ok := value.([]any)
		if !ok {
			return celtypes.NewErr("invalid data, expected an array for the provided schema with type=array")
		}
		if s.items == nil {
			return celtypes.NewErr("invalid array type, expected Items with a non-empty Schema")
		}
		return &listValue{items: list, schema: s.items, kind: s.listType, keys: s.listKeys}
	}
	return scalarValue(value, s)
}

func scalarValue(value any, s *Schema) ref.Val {
	switch s.types {
	case text:
		if word, ok := value.(string); ok {
			return textValue(word, s.format)
		}
		return celtypes.NewErr("invalid data, expected string, got %T", value)
	case number:
		switch value := value.(type) {
		case int64: // 1.0 may be decoded as 1
			return celtypes.Double(value)
		case float64:
			return celtypes.Double(value)
		}
		return celtypes.NewErr("invalid data, expected float, got %T", value)
	case integer:
		if n, ok := value.(int64); ok {
			return celtypes.Int(n)
		}
		return celtypes.NewErr("invalid data, expected int, got %T", value)
	case boolean:
		if b, ok := value.(bool); ok {
			return celtypes.Bool(b)
		}
		return celtypes.NewErr("invalid data, expected bool, got %T", value)
	}
	if s.preserve {
		return opaque{value}
	}
	return celtypes.NewErr("invalid type, expected object, array, number, integer, boolean or string, or no type "+
		"with x-kubernetes-int-or-string or x-kubernetes-preserve-unknown-fields is true, got %s", s.types)
}

func textValue(word, format string) ref.Val {
	switch format {
	case "duration":
		d, err := strfmt.ParseDuration(word)
		if err != nil {
			return celtypes.NewErr("Invalid duration %s: %v", word, err)
		}
		return celtypes.Duration{Duration: d}
	case "date":
		d, err := time.Parse(strfmt.RFC3339FullDate, word)
		if err != nil {
			return celtypes.NewErr("Invalid date formatted string %s: %v", word, err)
		}
		return celtypes.Timestamp{Time: d}
	case "date-time":
		d, err := strfmt.ParseDateTime(word)
		if err != nil {
			return celtypes.NewErr("Invalid date-time formatted string %s: %v", word, err)
		}
		return celtypes.Timestamp{Time: time.Time(d)}
	case "byte":
		var data strfmt.Base64
		if err := data.UnmarshalText([]byte(word)); err != nil {
			return celtypes.NewErr("Invalid byte formatted string %s: %v", word, err)
		}
		return celtypes.Bytes(data)
	}
	return celtypes.String(word)
}

// opaque is a value without a type, preserved by the schema. Expressions can only compare it.
type opaque struct{ value any }

// ConvertToNative implements ref.Val.
func (o opaque) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("type conversion to '%s' not supported for values preserved by "+
		"x-kubernetes-preserve-unknown-fields", t)
}

// ConvertToType implements ref.Val.
func (o opaque) ConvertToType(t ref.Type) ref.Val {
	return celtypes.NewErr("type conversion to '%s' not supported for values preserved by "+
		"x-kubernetes-preserve-unknown-fields", t.TypeName())
}

// Equal implements ref.Val.
func (o opaque) Equal(other ref.Val) ref.Val {
	return celtypes.Bool(reflect.DeepEqual(o.value, other.Value()))
}

// Type implements ref.Val.
func (o opaque) Type() ref.Type { return celtypes.UnknownType }

// Value implements ref.Val.
func (o opaque) Value() any { return o.value }

// objectValue is an object or, if its schema has no properties, a map.
type objectValue struct {
	fields map[string]any
	schema *Schema
}

var _ traits.Mapper = (*objectValue)(nil)

// isObject reports whether it is an object: expressions can name its fields.
func (o *objectValue) isObject() bool { return o.schema.properties != nil }

// below returns the schema of a field, or nil if expressions cannot access the field.
func (o *objectValue) below(name string) *Schema {
	if o.isObject() || o.schema.embedded {
		return o.schema.properties[name]
	}
	return o.schema.additional
}

// Find implements traits.Mapper. A null field of an object counts as missing.
func (o *objectValue) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(celtypes.String)
	if !ok {
		return celtypes.MaybeNoSuchOverloadErr(key), true
	}
	property := string(name)
	if o.isObject() {
		if property, ok = cel.Unescape(property); !ok {
			return nil, false
		}
	}
	value, found := o.fields[property]
	below := o.below(property)
	if !found || below == nil || o.isObject() && value == nil {
		return nil, false
	}
	return ruleValue(value, below), true
}

// Get implements traits.Indexer.
func (o *objectValue) Get(key ref.Val) ref.Val {
	if value, found := o.Find(key); found {
		return value
	}
	return celtypes.ValOrErr(key, "no such key: %v", key)
}

// Contains implements traits.Container.
func (o *objectValue) Contains(key ref.Val) ref.Val {
	value, found := o.Find(key)
	if value != nil && celtypes.IsUnknownOrError(value) {
		return value
	}
	return celtypes.Bool(found)
}

// Size implements traits.Sizer.
func (o *objectValue) Size() ref.Val { return celtypes.Int(len(o.fields)) }

// Iterator implements traits.Iterable.
func (o *objectValue) Iterator() traits.Iterator {
	keys := make([]ref.Val, 0, len(o.fields))
	for _, name := range sortedNames(o.fields) {
		if o.below(name) == nil {
			continue
		}
		if escaped, ok := cel.Escape(name); ok && o.isObject() {
			name = escaped
		}
		keys = append(keys, celtypes.String(name))
	}
	return celtypes.NewRefValList(celtypes.DefaultTypeAdapter, keys).Iterator()
}

// Equal implements ref.Val. Fields that the schema does not declare are compared without conversion.
func (o *objectValue) Equal(other ref.Val) ref.Val {
	mapper, ok := other.(traits.Mapper)
	if !ok {
		return celtypes.MaybeNoSuchOverloadErr(other)
	}
	if o.Size() != mapper.Size() {
		return celtypes.False
	}
	for name, value := range o.fields {
		if o.below(name) == nil {
			raw, ok := other.(*objectValue)
			if !ok {
				return celtypes.MaybeNoSuchOverloadErr(other)
			}
			if theirs, found := raw.fields[name]; found && !reflect.DeepEqual(value, theirs) {
				return celtypes.False
			}
			continue
		}
		mine, found := o.Find(celtypes.String(name))
		theirs, theirsFound := mapper.Find(celtypes.String(name))
		switch {
		case found != theirsFound:
			return celtypes.False
		case found:
			if same := mine.Equal(theirs); same != celtypes.True {
				return same // false or an error
			}
		}
	}
	return celtypes.True
}

// ConvertToNative implements ref.Val.
func (o *objectValue) ConvertToNative(t reflect.Type) (any, error) {
	if t.Kind() == reflect.Map {
		return o.fields, nil
	}
	return nil, fmt.Errorf("type conversion error from '%s' to '%s'", o.Type(), t)
}

// ConvertToType implements ref.Val.
func (o *objectValue) ConvertToType(t ref.Type) ref.Val {
	switch t {
	case celtypes.MapType:
		return o
	case celtypes.TypeType:
		return celtypes.MapType
	}
	return celtypes.NewErr("type conversion error from '%s' to '%s'", o.Type(), t.TypeName())
}

// Type implements ref.Val.
func (o *objectValue) Type() ref.Type { return celtypes.MapType }

// Value implements ref.Val.
func (o *objectValue) Value() any { return o.fields }
