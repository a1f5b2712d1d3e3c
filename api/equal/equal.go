// Package equal compares API objects as Kubernetes does (apimachinery's equality.Semantic): quantities and times by
// their meaning, and an empty list, map or byte slice as equal to an absent one.
//
// Every update compares the whole object with the stored one. apimachinery looks up the comparison of its type for
// every value. This package does so once for each type, and reads the values in place.
package equal

import (
	"bytes"
	"reflect"
	"sync"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Semantic reports whether a and b are semantically equal. Values of different types are not. It is safe for
// concurrent use.
func Semantic(a, b any) bool {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	if !x.IsValid() || !y.IsValid() {
		return x.IsValid() == y.IsValid()
	}
	return x.Type() == y.Type() && semantic.comparer(x.Type())(address(x), address(y))
}

// Identical reports whether a and b are exactly equal: an empty list differs from an absent one, and a quantity
// differs from an equal one in another unit. Identical values have the same JSON and are semantically equal. The
// converse does not hold. Both must be valid. Addressable values are not copied.
func Identical(a, b reflect.Value) bool {
	return a.Type() == b.Type() && identical.comparer(a.Type())(address(a), address(b))
}

// comparer compares two values of one type at their addresses.
type comparer func(a, b unsafe.Pointer) bool

// rules is one definition of equality.
type rules struct {
	comparers sync.Map // of reflect.Type to comparer
	meanings  map[reflect.Type]comparer
	// emptyIsAbsent reports that an empty value equals an absent one.
	emptyIsAbsent bool
	other         func(a, b any) bool
}

var semantic = &rules{
	emptyIsAbsent: true,
	other:         func(a, b any) bool { return equality.Semantic.DeepEqual(a, b) },
	meanings: map[reflect.Type]comparer{
		reflect.TypeFor[resource.Quantity](): typed(func(a, b *resource.Quantity) bool { return a.Cmp(*b) == 0 }),
		reflect.TypeFor[metav1.Time]():       typed(func(a, b *metav1.Time) bool { return a.UTC() == b.UTC() }),
		reflect.TypeFor[metav1.MicroTime]():  typed(func(a, b *metav1.MicroTime) bool { return a.UTC() == b.UTC() }),
		reflect.TypeFor[map[string]string](): typed(func(a, b *map[string]string) bool { return sameTexts(*a, *b) }),
		reflect.TypeFor[corev1.ResourceList](): typed(func(a, b *corev1.ResourceList) bool {
			return sameQuantities(*a, *b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
		}),
	},
}

var identical = &rules{
	other: reflect.DeepEqual,
	meanings: map[reflect.Type]comparer{
		reflect.TypeFor[resource.Quantity](): typed(func(a, b *resource.Quantity) bool { return sameQuantity(*a, *b) }),
		reflect.TypeFor[metav1.Time]():       typed(func(a, b *metav1.Time) bool { return *a == *b }),
		reflect.TypeFor[metav1.MicroTime]():  typed(func(a, b *metav1.MicroTime) bool { return *a == *b }),
		reflect.TypeFor[map[string]string](): typed(func(a, b *map[string]string) bool {
			return (*a == nil) == (*b == nil) && sameTexts(*a, *b)
		}),
		reflect.TypeFor[corev1.ResourceList](): typed(func(a, b *corev1.ResourceList) bool {
			return (*a == nil) == (*b == nil) && sameQuantities(*a, *b, sameQuantity)
		}),
	},
}

func sameQuantity(a, b resource.Quantity) bool { return a.Format == b.Format && a.Cmp(b) == 0 }

func sameTexts(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if other, ok := b[k]; !ok || v != other {
			return false
		}
	}
	return true
}

func sameQuantities(a, b corev1.ResourceList, same func(x, y resource.Quantity) bool) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if other, ok := b[k]; !ok || !same(v, other) {
			return false
		}
	}
	return true
}

// typed adapts a comparison of values of type T.
func typed[T any](equal func(a, b *T) bool) comparer {
	return func(a, b unsafe.Pointer) bool { return equal((*T)(a), (*T)(b)) }
}

func equals[T comparable](a, b unsafe.Pointer) bool { return *(*T)(a) == *(*T)(b) }

// address returns the address of a value, or of a copy of it.
func address(v reflect.Value) unsafe.Pointer {
	if v.CanAddr() {
		return v.Addr().UnsafePointer()
	}
	copied := reflect.New(v.Type())
	copied.Elem().Set(v)
	return copied.UnsafePointer()
}

func (r *rules) comparer(t reflect.Type) comparer {
	if c, ok := r.comparers.Load(t); ok {
		return c.(comparer)
	}
	// Types may contain themselves, so each is compiled on first use.
	compiled := sync.OnceValue(func() comparer { return r.compile(t) })
	c, _ := r.comparers.LoadOrStore(t, comparer(func(a, b unsafe.Pointer) bool { return compiled()(a, b) }))
	return c.(comparer)
}

func (r *rules) compile(t reflect.Type) comparer {
	if c := r.meanings[t]; c != nil {
		return c
	}
	switch t.Kind() {
	case reflect.String:
		return equals[string]
	case reflect.Bool:
		return equals[bool]
	case reflect.Int32:
		return equals[int32]
	case reflect.Int64:
		return equals[int64]
	case reflect.Int:
		return equals[int]
	case reflect.Pointer:
		return r.pointers(t)
	case reflect.Slice:
		return r.slices(t)
	case reflect.Map:
		return r.maps(t)
	case reflect.Struct:
		return r.structs(t)
	}
	return r.asLibrary(t)
}

// asLibrary compares values with the library's function, for types that are rare in API objects.
func (r *rules) asLibrary(t reflect.Type) comparer {
	return func(a, b unsafe.Pointer) bool {
		return r.other(reflect.NewAt(t, a).Elem().Interface(), reflect.NewAt(t, b).Elem().Interface())
	}
}

func (r *rules) pointers(t reflect.Type) comparer {
	elem := r.comparer(t.Elem())
	return func(a, b unsafe.Pointer) bool {
		x, y := *(*unsafe.Pointer)(a), *(*unsafe.Pointer)(b)
		return x == y || x != nil && y != nil && elem(x, y)
	}
}

func (r *rules) slices(t reflect.Type) comparer {
	elem, size := r.comparer(t.Elem()), t.Elem().Size()
	octets := t.Elem().Kind() == reflect.Uint8
	return func(a, b unsafe.Pointer) bool {
		// for any element type, only the address of the first element and the length are read
		x, y := *(*[]byte)(a), *(*[]byte)(b)
		if len(x) != len(y) || !r.emptyIsAbsent && (x == nil) != (y == nil) {
			return false
		}
		if octets {
			return bytes.Equal(x, y)
		}
		p, q := unsafe.Pointer(unsafe.SliceData(x)), unsafe.Pointer(unsafe.SliceData(y))
		if p == q {
			return true
		}
		for i := range uintptr(len(x)) {
			if !elem(unsafe.Add(p, i*size), unsafe.Add(q, i*size)) {
				return false
			}
		}
		return true
	}
}

func (r *rules) maps(t reflect.Type) comparer {
	elem := r.comparer(t.Elem())
	return func(a, b unsafe.Pointer) bool {
		x, y := reflect.NewAt(t, a).Elem(), reflect.NewAt(t, b).Elem()
		if x.Len() != y.Len() || !r.emptyIsAbsent && x.IsNil() != y.IsNil() {
			return false
		}
		for entries := x.MapRange(); entries.Next(); {
			other := y.MapIndex(entries.Key())
			if !other.IsValid() || !elem(address(entries.Value()), address(other)) {
				return false
			}
		}
		return true
	}
}

func (r *rules) structs(t reflect.Type) comparer {
	type field struct {
		offset uintptr
		equal  comparer
	}
	fields := make([]field, 0, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case f.IsExported():
			fields = append(fields, field{f.Offset, r.comparer(f.Type)})
		case f.Type.Kind() != reflect.Pointer: // an object's own pointers are not part of its document
			return r.asLibrary(t)
		}
	}
	return func(a, b unsafe.Pointer) bool {
		for i := range fields {
			f := &fields[i]
			if !f.equal(unsafe.Add(a, f.offset), unsafe.Add(b, f.offset)) {
				return false
			}
		}
		return true
	}
}
