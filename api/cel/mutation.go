package cel

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"google.golang.org/protobuf/types/known/structpb"
)

// The values of mutations: Object{…} and Object.spec{…} for apply configurations, JSONPatch{…} for JSON
// patches.

var patchLibrary = library{name: "kubernetes.jsonpatch", functions: map[string][]celgo.FunctionOpt{
	"jsonpatch.escapeKey": {call("string_jsonpatch_escapeKey_string", args(celgo.StringType), celgo.StringType,
		unary(func(key string) ref.Val {
			return types.String(pointerEscapes.Replace(key))
		}))},
}}

// RFC 6901.
var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// objectValue is an Object{…} with any path.
type objectValue struct {
	typ    *types.Type
	fields map[string]ref.Val
}

// ConvertToNative implements ref.Val.
func (v *objectValue) ConvertToNative(target reflect.Type) (any, error) {
	object, err := plainObject(v)
	if err != nil {
		return nil, err
	}
	switch target {
	case reflect.TypeFor[map[string]any]():
		return object, nil
	case reflect.TypeFor[*structpb.Struct]():
		return structpb.NewStruct(object)
	case reflect.TypeFor[*structpb.Value]():
		return structpb.NewValue(object)
	}
	return nil, fmt.Errorf("unable to convert to %v", target)
}

// ConvertToType implements ref.Val.
func (v *objectValue) ConvertToType(target ref.Type) ref.Val {
	switch {
	case target.TypeName() == v.typ.TypeName():
		return v
	case target == types.TypeType:
		return types.NewTypeTypeWithParam(v.typ)
	}
	return types.NewErr("unsupported conversion into %v", target)
}

// Equal implements ref.Val.
func (v *objectValue) Equal(other ref.Val) ref.Val {
	o, ok := other.(*objectValue)
	if !ok || v.typ.TypeName() != o.typ.TypeName() || len(v.fields) != len(o.fields) {
		return types.False
	}
	for name, field := range v.fields {
		if value, ok := o.fields[name]; !ok || field.Equal(value) != types.True {
			return types.False
		}
	}
	return types.True
}

// Type implements ref.Val.
func (v *objectValue) Type() ref.Type { return v.typ }

// Value implements ref.Val.
func (v *objectValue) Value() any {
	object, err := plainObject(v)
	if err != nil {
		return types.WrapErr(err)
	}
	return object
}

// IsZeroValue implements traits.Zeroer.
func (v *objectValue) IsZeroValue() bool { return len(v.fields) == 0 }

// checkNames requires the type of each Object to match its path.
func checkNames(v ref.Val, path string) error {
	var errs []error
	switch v := v.(type) {
	case *objectValue:
		if name := v.typ.TypeName(); name != path {
			errs = append(errs, fmt.Errorf("unexpected type name %q, expected %q, which matches field name path "+
				"from root Object type", name, path))
		}
		for name, field := range v.fields {
			errs = append(errs, checkNames(field, path+"."+name))
		}
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True; {
			errs = append(errs, checkNames(it.Next(), path))
		}
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True; {
			errs = append(errs, checkNames(v.Get(it.Next()), path))
		}
	}
	return errors.Join(errs...)
}

func plainObject(v *objectValue) (map[string]any, error) {
	object := make(map[string]any, len(v.fields))
	for name, field := range v.fields {
		is, err := plain(field)
		if err != nil {
			return nil, fmt.Errorf("fail to convert field %q: %w", name, err)
		}
		object[name] = is
	}
	return object, nil
}

// plain converts a value to JSON's types: maps with string keys, lists, strings, numbers.
func plain(v ref.Val) (any, error) {
	switch v := v.(type) {
	case *objectValue:
		return plainObject(v)
	case types.Null:
		return nil, nil
	case types.Bool, types.String, types.Int, types.Double:
		return v.Value(), nil
	case traits.Lister:
		list := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			is, err := plain(it.Next())
			if err != nil {
				return nil, err
			}
			list = append(list, is)
		}
		return list, nil
	case traits.Mapper:
		object := map[string]any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			name, ok := key.Value().(string)
			if !ok {
				return nil, fmt.Errorf("map key %v is of type %T, not string", key, key)
			}
			is, err := plain(v.Get(key))
			if err != nil {
				return nil, err
			}
			object[name] = is
		}
		return object, nil
	}
	// CEL's own conversion to JSON handles bytes, timestamps and durations.
	native, err := v.ConvertToNative(reflect.TypeFor[*structpb.Value]())
	if err != nil {
		return nil, err
	}
	return native.(*structpb.Value).AsInterface(), nil
}

// patchValue is a JSONPatch{…}.
type patchValue struct {
	op, from, path string
	value          ref.Val
}

func newPatch(fields map[string]ref.Val) ref.Val {
	p := &patchValue{}
	for name, v := range fields {
		if name == "value" {
			p.value = v
			continue
		}
		text, ok := v.Value().(string)
		if !ok {
			return types.NewErr("unexpected type %T for JSONPatchType '%s' field", v.Value(), name)
		}
		switch name {
		case "op":
			p.op = text
		case "path":
			p.path = text
		case "from":
			p.from = text
		}
	}
	return p
}

// field returns a field of the patch, and whether it is set.
func (p *patchValue) field(name ref.Val) (ref.Val, bool) {
	switch name.Value() {
	case "op":
		return types.String(p.op), p.op != ""
	case "path":
		return types.String(p.path), p.path != ""
	case "from":
		return types.String(p.from), p.from != ""
	case "value":
		if p.value != nil {
			return p.value, true
		}
		return types.NullValue, false
	}
	return types.NewErr("unsupported field: %v", name.Value()), false
}

// Get implements traits.Indexer, IsSet traits.FieldTester.
func (p *patchValue) Get(name ref.Val) ref.Val { v, _ := p.field(name); return v }

// IsSet implements traits.FieldTester.
func (p *patchValue) IsSet(name ref.Val) ref.Val { _, set := p.field(name); return types.Bool(set) }

// ConvertToNative implements ref.Val.
func (p *patchValue) ConvertToNative(target reflect.Type) (any, error) {
	return nil, fmt.Errorf("cannot convert to native type: %v", target)
}

// ConvertToType implements ref.Val.
func (p *patchValue) ConvertToType(target ref.Type) ref.Val {
	switch {
	case target.TypeName() == patchType.TypeName():
		return p
	case target == types.TypeType:
		return types.NewTypeTypeWithParam(patchType)
	}
	return types.NewErr("unsupported type: %s", target.TypeName())
}

// Equal implements ref.Val.
func (p *patchValue) Equal(other ref.Val) ref.Val {
	o, ok := other.(*patchValue)
	if !ok || p.op != o.op || p.from != o.from || p.path != o.path || (p.value == nil) != (o.value == nil) {
		return types.False
	}
	if p.value == nil {
		return types.True
	}
	return p.value.Equal(o.value)
}

// Type implements ref.Val.
func (p *patchValue) Type() ref.Type { return patchType }

// Value implements ref.Val.
func (p *patchValue) Value() any { return p }

// operation returns the patch in the form of RFC 6902.
func (p *patchValue) operation() (map[string]any, error) {
	op := map[string]any{"op": p.op, "path": p.path}
	if p.from != "" {
		op["from"] = p.from
	}
	if p.value == nil {
		return op, nil
	}
	if object, ok := p.value.(*objectValue); ok {
		if err := checkNames(object, object.typ.TypeName()); err != nil {
			return nil, fmt.Errorf("type mismatch: %w", err)
		}
	}
	is, err := plain(p.value)
	if err != nil {
		return nil, fmt.Errorf("JSONPath valueExpression evaluated to a type that could not marshal to JSON: %w", err)
	}
	op["value"] = is
	return op, nil
}

// ApplyConfiguration returns the object that an expression with the result Object evaluated to.
func (e Evaluation) ApplyConfiguration() (map[string]any, error) {
	object, ok := e.value.(*objectValue)
	if !ok {
		return nil, fmt.Errorf("unsupported return type from ApplyConfiguration expression: %v", e.value.Type())
	}
	if err := checkNames(object, "Object"); err != nil {
		return nil, fmt.Errorf("type mismatch: %w", err)
	}
	return plainObject(object)
}

// JSONPatch returns the JSON patch that an expression with the result Patches evaluated to.
func (e Evaluation) JSONPatch() ([]byte, error) {
	list, ok := e.value.(traits.Lister)
	if !ok {
		return nil, errors.New("type mismatch: JSONPatchType.expression should evaluate to array")
	}
	operations := []map[string]any{}
	for it := list.Iterator(); it.HasNext() == types.True; {
		v := it.Next()
		p, ok := v.(*patchValue)
		if !ok {
			return nil, fmt.Errorf(
				"type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch, got element of %T", v)
		}
		op, err := p.operation()
		if err != nil {
			return nil, err
		}
		operations = append(operations, op)
	}
	doc, err := json.Marshal(operations)
	if err != nil {
		return nil, fmt.Errorf("encoding a JSON patch: %w", err)
	}
	return doc, nil
}
