// Package equal compares API objects as Kubernetes does (apimachinery's
// equality.Semantic): quantities and times by what they mean, and an empty list, map or
// slice of bytes like one that is absent.
//
// Every update compares the whole object with what it was. apimachinery finds out anew, for
// every value, how its type is compared; here that is worked out once for each type.
package equal

import (
	"bytes"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Semantic reports whether a and b are equal; values of different types are not. It is safe
// for concurrent use.
func Semantic(a, b any) bool {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	if !x.IsValid() || !y.IsValid() {
		return x.IsValid() == y.IsValid()
	}
	return x.Type() == y.Type() && comparerOf(x.Type())(x, y)
}

// comparer compares two values of one type.
type comparer func(a, b reflect.Value) bool

// comparers by reflect.Type.
var comparers sync.Map

func comparerOf(t reflect.Type) comparer {
	if c, ok := comparers.Load(t); ok {
		return c.(comparer)
	}
	// Types may contain themselves: each is worked out when it is first needed.
	compiled := sync.OnceValue(func() comparer { return compile(t) })
	c, _ := comparers.LoadOrStore(t, comparer(func(a, b reflect.Value) bool { return compiled()(a, b) }))
	return c.(comparer)
}

// meanings are the types that are not compared field by field, and entry by entry.
var meanings = map[reflect.Type]comparer{
	reflect.TypeFor[resource.Quantity](): by(func(a, b *resource.Quantity) bool { return a.Cmp(*b) == 0 }),
	reflect.TypeFor[metav1.Time]():       by(func(a, b *metav1.Time) bool { return a.UTC() == b.UTC() }),
	reflect.TypeFor[corev1.ResourceList](): func(a, b reflect.Value) bool {
		return resourceLists(a.Interface().(corev1.ResourceList), b.Interface().(corev1.ResourceList))
	},
	reflect.TypeFor[metav1.MicroTime](): by(func(a, b *metav1.MicroTime) bool { return a.UTC() == b.UTC() }),
}

// by compares values of type T by their addresses, or those of copies.
func by[T any](equal func(a, b *T) bool) comparer {
	address := func(v reflect.Value) *T {
		if v.CanAddr() {
			return v.Addr().Interface().(*T)
		}
		copied := v.Interface().(T)
		return &copied
	}
	return func(a, b reflect.Value) bool { return equal(address(a), address(b)) }
}

func compile(t reflect.Type) comparer {
	if c := meanings[t]; c != nil {
		return c
	}
	switch t.Kind() {
	case reflect.String:
		return func(a, b reflect.Value) bool { return a.String() == b.String() }
	case reflect.Bool:
		return func(a, b reflect.Value) bool { return a.Bool() == b.Bool() }
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return func(a, b reflect.Value) bool { return a.Int() == b.Int() }
	case reflect.Pointer:
		return pointers(comparerOf(t.Elem()))
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return func(a, b reflect.Value) bool { return bytes.Equal(a.Bytes(), b.Bytes()) }
		}
		return slices(comparerOf(t.Elem()))
	case reflect.Map:
		return maps(comparerOf(t.Elem()))
	case reflect.Struct:
		return structs(t)
	}
	return asApimachinery
}

// asApimachinery is for types that API objects hardly have.
func asApimachinery(a, b reflect.Value) bool {
	return equality.Semantic.DeepEqual(a.Interface(), b.Interface())
}

func pointers(elem comparer) comparer {
	return func(a, b reflect.Value) bool {
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return a.UnsafePointer() == b.UnsafePointer() || elem(a.Elem(), b.Elem())
	}
}

func slices(elem comparer) comparer {
	return func(a, b reflect.Value) bool {
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !elem(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	}
}

func maps(elem comparer) comparer {
	return func(a, b reflect.Value) bool {
		if a.Len() != b.Len() {
			return false
		}
		for entries := a.MapRange(); entries.Next(); {
			if other := b.MapIndex(entries.Key()); !other.IsValid() || !elem(entries.Value(), other) {
				return false
			}
		}
		return true
	}
}

// resourceLists compares the maps that are most in pods, of which maps would copy every entry.
func resourceLists(a, b corev1.ResourceList) bool {
	for name, amount := range a {
		if other, ok := b[name]; !ok || amount.Cmp(other) != 0 {
			return false
		}
	}
	return len(a) == len(b)
}

func structs(t reflect.Type) comparer {
	fields := make([]comparer, t.NumField())
	for i := range fields {
		f := t.Field(i)
		if !f.IsExported() {
			return asApimachinery
		}
		fields[i] = comparerOf(f.Type)
	}
	return func(a, b reflect.Value) bool {
		for i, equal := range fields {
			if !equal(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	}
}
