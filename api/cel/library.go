package cel

import (
	"fmt"
	"reflect"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// library is a set of functions, in a table of their overloads.
type library struct {
	name      string
	functions map[string][]celgo.FunctionOpt
	program   []celgo.ProgramOption
	// storedOnly marks a library that new expressions may not use yet.
	storedOnly bool
}

var libraries = []library{listLibrary, includesLibrary, regexLibrary, urlLibrary, ipLibrary, cidrLibrary,
	quantityLibrary, semverLibrary, formatLibrary, authorizerLibrary}

// LibraryName implements cel's SingletonLibrary.
func (l library) LibraryName() string { return l.name }

// CompileOptions implements cel's Library.
func (l library) CompileOptions() []celgo.EnvOption {
	options := make([]celgo.EnvOption, 0, len(l.functions))
	for name, overloads := range l.functions {
		options = append(options, celgo.Function(name, overloads...))
	}
	return options
}

// ProgramOptions implements cel's Library.
func (l library) ProgramOptions() []celgo.ProgramOption { return l.program }

// call and member declare an overload of a function, and of a method of its first argument.
func call(id string, args []*celgo.Type, result *celgo.Type, bind celgo.OverloadOpt) celgo.FunctionOpt {
	return celgo.Overload(id, args, result, bind)
}

func member(id string, args []*celgo.Type, result *celgo.Type, bind celgo.OverloadOpt) celgo.FunctionOpt {
	return celgo.MemberOverload(id, args, result, bind)
}

func args(types ...*celgo.Type) []*celgo.Type { return types }

// unary, binary and ternary bind functions of Go values. An argument of another type yields the language's own error.
func unary[A any](f func(A) ref.Val) celgo.OverloadOpt {
	return celgo.UnaryBinding(func(a ref.Val) ref.Val {
		x, ok := a.Value().(A)
		if !ok {
			return types.MaybeNoSuchOverloadErr(a)
		}
		return f(x)
	})
}

func binary[A, B any](f func(A, B) ref.Val) celgo.OverloadOpt {
	return celgo.BinaryBinding(func(a, b ref.Val) ref.Val {
		x, ok := a.Value().(A)
		if !ok {
			return types.MaybeNoSuchOverloadErr(a)
		}
		y, ok := b.Value().(B)
		if !ok {
			return types.MaybeNoSuchOverloadErr(b)
		}
		return f(x, y)
	})
}

func ternary[A, B, C any](f func(A, B, C) ref.Val) celgo.OverloadOpt {
	return celgo.FunctionBinding(func(all ...ref.Val) ref.Val {
		x, ok := all[0].Value().(A)
		if !ok {
			return types.MaybeNoSuchOverloadErr(all[0])
		}
		y, ok := all[1].Value().(B)
		if !ok {
			return types.MaybeNoSuchOverloadErr(all[1])
		}
		z, ok := all[2].Value().(C)
		if !ok {
			return types.MaybeNoSuchOverloadErr(all[2])
		}
		return f(x, y, z)
	})
}

// value wraps a Go value of one of Kubernetes' own types for expressions.
type value[T any] struct {
	typ     *types.Type
	wrapped T
	equal   func(T, T) bool
	// text, if not nil, converts the value to a string. size is the cost of reading the value.
	text func(T) string
	size int
}

// ConvertToNative implements ref.Val.
func (v value[T]) ConvertToNative(target reflect.Type) (any, error) {
	if reflect.TypeFor[T]().AssignableTo(target) {
		return v.wrapped, nil
	}
	if v.text != nil && target.Kind() == reflect.String {
		return v.text(v.wrapped), nil
	}
	return nil, fmt.Errorf("type conversion error from '%s' to '%v'", v.typ, target)
}

// ConvertToType implements ref.Val.
func (v value[T]) ConvertToType(target ref.Type) ref.Val {
	switch {
	case target.TypeName() == v.typ.TypeName():
		return v
	case target == types.TypeType:
		return v.typ
	case target == types.StringType && v.text != nil:
		return types.String(v.text(v.wrapped))
	}
	return types.NewErr("type conversion error from '%s' to '%s'", v.typ, target)
}

// Equal implements ref.Val.
func (v value[T]) Equal(other ref.Val) ref.Val {
	o, ok := other.(value[T])
	if !ok || v.equal == nil {
		return types.MaybeNoSuchOverloadErr(other)
	}
	return types.Bool(v.equal(v.wrapped, o.wrapped))
}

// Type implements ref.Val.
func (v value[T]) Type() ref.Type { return v.typ }

// Value implements ref.Val.
func (v value[T]) Value() any { return v.wrapped }

// Size implements traits.Sizer, for the costs of calls.
func (v value[T]) Size() ref.Val { return types.Int(max(v.size, 1)) }

// foreign marks values that are compared in one step.
func (v value[T]) foreign() {}
