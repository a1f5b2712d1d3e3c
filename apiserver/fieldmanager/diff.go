package fieldmanager

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api/equal"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// changes returns the paths with differences between two objects of a Go type. Paths that the new object adds or
// changes are members; paths that only the old object has are lost. It compares the JSON of the objects without
// encoding them.
func changes(s *shape, old, obj any) *fieldSet {
	root := fieldSets.Get().(*fieldSet)
	s.compare(indirect(reflect.ValueOf(old)), indirect(reflect.ValueOf(obj)), root)
	return root
}

// compare records the change of a value in at. An invalid Value represents a missing one.
func (s *shape) compare(old, now reflect.Value, at *fieldSet) {
	divided := false
	switch s.form {
	case structure:
		divided = s.compareFields(indirect(old), indirect(now), at)
	case mapping:
		divided = s.compareEntries(indirect(old), indirect(now), at)
	case set, keyed:
		divided = s.compareItems(indirect(old), indirect(now), at)
	case free:
		compareFree(freeValue(old), freeValue(now), at)
		return
	}
	switch {
	case !old.IsValid():
		at.member = true
	case !now.IsValid():
		at.lost = true
	case !divided && !sameValue(old, now):
		at.member = true
	}
}

// indirect dereferences pointers. It returns the invalid Value for JSON null.
func indirect(v reflect.Value) reflect.Value {
	for v.IsValid() {
		switch v.Kind() {
		case reflect.Pointer, reflect.Interface:
			v = v.Elem()
			continue
		case reflect.Map, reflect.Slice:
			if v.IsNil() {
				return reflect.Value{}
			}
		}
		break
	}
	return v
}

// compareFields returns false if neither struct has a field. Such a struct is owned as a whole.
func (s *shape) compareFields(old, now reflect.Value, at *fieldSet) bool {
	divided := s.reduced
	for i := range s.fields {
		f := &s.fields[i]
		a, b := f.in(old), f.in(now)
		if !a.IsValid() && !b.IsValid() {
			continue
		}
		divided = true
		f.shape.below(f.element, a, b, at)
	}
	return divided
}

// below compares a nested value. Most values are unchanged, so it checks that first.
func (s *shape) below(element string, old, now reflect.Value, at *fieldSet) {
	if old.IsValid() && now.IsValid() && (s.form == whole && sameValue(old, now) || s.form != whole &&
		equal.Identical(old, now)) {
		return
	}
	s.compare(old, now, at.begin(element))
	at.end()
}

func (s *shape) compareEntries(old, now reflect.Value, at *fieldSet) bool {
	keys := mapKeys(old, now)
	for _, key := range keys {
		s.elem.below("f:"+escape(key), entry(old, key), entry(now, key), at)
	}
	return len(keys) > 0
}

// mapKeys returns the keys of both maps, sorted.
func mapKeys(maps ...reflect.Value) []string {
	var keys []string
	for _, m := range maps {
		if !m.IsValid() {
			continue
		}
		for it := m.MapRange(); it.Next(); {
			keys = append(keys, it.Key().String())
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func entry(m reflect.Value, key string) reflect.Value {
	if !m.IsValid() {
		return m
	}
	return m.MapIndex(reflect.ValueOf(key).Convert(m.Type().Key()))
}

// item is an item of a set or keyed list, with the path element that identifies it.
type item[T any] struct {
	element string
	value   T
}

// itemShape compares the items of a list.
type itemShape[T any] interface {
	below(element string, old, now T, at *fieldSet)
	compare(old, now T, at *fieldSet)
	same(a, b T) bool
	// nothing represents a missing item.
	nothing() T
}

// compareItems returns false if both lists are empty. Such a list is owned as a whole.
func (s *shape) compareItems(old, now reflect.Value, at *fieldSet) bool {
	olds, nows := s.items(old), s.items(now)
	compareItems(s.elem, olds, nows, at)
	return len(olds) > 0 || len(nows) > 0
}

func (s *shape) same(a, b reflect.Value) bool { return sameValue(a, b) }

func (s *shape) nothing() reflect.Value { return reflect.Value{} }

// compareItems compares lists item by item. Items with the same element are owned as one.
func compareItems[T any, S itemShape[T]](s S, olds, nows []item[T], at *fieldSet) {
	for len(olds) > 0 || len(nows) > 0 {
		element := firstElement(olds, nows)
		a, b := run(&olds, element), run(&nows, element)
		if len(a) <= 1 && len(b) <= 1 {
			s.below(element, single(s, a), single(s, b), at)
			continue
		}
		part := at.begin(element)
		switch {
		case len(a) > 1 && len(b) > 1:
			part.member = !slices.EqualFunc(a, b, func(x, y item[T]) bool { return s.same(x.value, y.value) })
		case len(b) > 1:
			if len(a) == 1 {
				s.compare(a[0].value, s.nothing(), part)
			}
			part.member, part.lost = true, false
		default:
			if len(b) == 1 {
				s.compare(s.nothing(), b[0].value, part)
			}
			part.lost = !part.member
		}
		at.end()
	}
}

// items returns the items of a list, sorted by element.
func (s *shape) items(list reflect.Value) []item[reflect.Value] {
	if !list.IsValid() || list.Len() == 0 {
		return nil
	}
	items := make([]item[reflect.Value], list.Len())
	for i := range items {
		v := list.Index(i)
		items[i] = item[reflect.Value]{element: s.element(v), value: v}
	}
	sortItems(items)
	return items
}

func sortItems[T any](items []item[T]) {
	slices.SortStableFunc(items, func(a, b item[T]) int { return compareElements(a.element, b.element) })
}

func firstElement[T any](a, b []item[T]) string {
	if len(b) == 0 || len(a) > 0 && compareElements(a[0].element, b[0].element) <= 0 {
		return a[0].element
	}
	return b[0].element
}

// run removes the items with the given element from the front of the list and returns them.
func run[T any](items *[]item[T], element string) []item[T] {
	n := 0
	for n < len(*items) && (*items)[n].element == element {
		n++
	}
	taken := (*items)[:n]
	*items = (*items)[n:]
	return taken
}

func single[T any, S itemShape[T]](s S, items []item[T]) T {
	if len(items) == 0 {
		return s.nothing()
	}
	return items[0].value
}

// element returns the path element that identifies an item, in the form used in a FieldsV1 document.
func (s *shape) element(v reflect.Value) string {
	v = indirect(v)
	var buffer [128]byte
	if s.form == set {
		return string(appendScalar(append(buffer[:0], "v:"...), v))
	}
	b := append(buffer[:0], "k:{"...)
	for i := range s.keys {
		key := &s.keys[i]
		value := key.in(v)
		if !value.IsValid() && key.stands == "" {
			continue
		}
		if len(b) > len("k:{") {
			b = append(b, ',')
		}
		b = append(b, `\"`...)
		b = append(b, key.name...)
		b = append(b, `\":`...)
		if value.IsValid() {
			b = appendScalar(b, indirect(value))
		} else {
			b = append(b, key.stands...)
		}
	}
	return string(append(b, '}'))
}

// appendScalar appends a scalar's JSON, escaped for use inside a JSON string.
func appendScalar(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.String:
		if s := v.String(); encoding.PlainString(s) {
			return append(append(append(b, `\"`...), s...), `\"`...)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(b, v.Int(), 10)
	case reflect.Invalid:
		return append(b, "null"...)
	}
	doc, err := json.Marshal(v.Interface())
	if err != nil {
		return append(b, "null"...)
	}
	return append(b, escape(string(doc))...)
}

// escape returns the content of a JSON string that represents s.
func escape(s string) string {
	if encoding.PlainString(s) {
		return s
	}
	doc, _ := json.Marshal(s) // cannot fail
	return string(doc[1 : len(doc)-1])
}

// sameValue reports whether two values have the same JSON.
func sameValue(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.String:
		return a.String() == b.String()
	case reflect.Bool:
		return a.Bool() == b.Bool()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return a.Int() == b.Int()
	}
	if equal.Identical(a, b) {
		return true
	}
	docA, errA := json.Marshal(a.Interface())
	docB, errB := json.Marshal(b.Interface())
	return errA == nil && errB == nil && bytes.Equal(docA, docB)
}

// absent represents a missing free value.
type absent struct{}

// freeValue decodes the JSON of a value without a known type.
func freeValue(v reflect.Value) any {
	if !v.IsValid() {
		return absent{}
	}
	if v = indirect(v); !v.IsValid() {
		return nil
	}
	raw, ok := v.Interface().(runtime.RawExtension)
	if !ok {
		return v.Interface()
	}
	doc, err := raw.MarshalJSON()
	if err != nil {
		return nil
	}
	var decoded any
	if encoding.Unmarshal(doc, &decoded) != nil {
		return nil
	}
	return decoded
}

// compareFree does the same as compare for decoded JSON. If an object replaces a value of a different kind, or vice
// versa, both the path and the nested paths change.
func compareFree(old, now any, at *fieldSet) {
	was, wasObject := old.(map[string]any)
	is, isObject := now.(map[string]any)
	keys := mapKeys(reflect.ValueOf(was), reflect.ValueOf(is))
	for _, key := range keys {
		compareFree(freeEntry(was, key), freeEntry(is, key), at.begin("f:"+escape(key)))
		at.end()
	}
	divided := len(keys) > 0 && (wasObject || old == nil) && (isObject || now == nil)
	switch {
	case old == absent{}:
		at.member = true
	case now == absent{}:
		at.lost = true
	case !divided && !reflect.DeepEqual(old, now):
		at.member = true
	}
}

func freeEntry(object map[string]any, key string) any {
	if v, ok := object[key]; ok {
		return v
	}
	return absent{}
}
