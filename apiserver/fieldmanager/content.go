package fieldmanager

import (
	"math"
	"reflect"
	"slices"
	"strconv"
)

// compare records the change of a JSON value in at, as shape.compare does for Go values. absent{} represents a
// missing value. Both values must fit the layout.
func (l *layout) compare(old, now any, at *fieldSet) {
	was, is := l.part(old), l.part(now)
	switch {
	case now == absent{}:
		is = was
	case old == absent{}:
		was = is
	}
	divided := l.comparePart(was, old, now, at)
	if is != was {
		divided = l.comparePart(is, old, now, at) && divided
	}
	switch {
	case old == absent{}:
		at.member = true
	case now == absent{}:
		at.lost = true
	case !divided && !sameJSON(old, now):
		at.member = true
	}
}

// part identifies a part of a layout.
type part int

const (
	ofObject part = iota
	ofScalar
	ofList
)

// part returns the part of the layout that applies to a value; for null the first existing one.
func (l *layout) part(v any) part {
	switch v.(type) {
	case map[string]any:
		return ofObject
	case []any:
		return ofList
	case nil, absent:
		switch {
		case l.object != nil:
			return ofObject
		case l.scalar == noScalar:
			return ofList
		}
	}
	return ofScalar
}

// comparePart compares nested values. It returns false if the value is owned as a whole.
func (l *layout) comparePart(p part, old, now any, at *fieldSet) (divided bool) {
	switch p {
	case ofObject:
		was, _ := old.(map[string]any)
		is, _ := now.(map[string]any)
		if l.object.form == whole || len(was) == 0 && len(is) == 0 {
			return false
		}
		l.object.compare(was, is, at)
		return true
	case ofList:
		was, _ := old.([]any)
		is, _ := now.([]any)
		if l.list.form == whole || len(was) == 0 && len(is) == 0 {
			return false
		}
		compareItems(l.list.items, l.list.identified(was), l.list.identified(is), at)
		return true
	}
	return false
}

// compare compares objects field by field.
func (o *objectLayout) compare(old, now map[string]any, at *fieldSet) {
	var buffer [16]string
	for _, name := range fieldsOfBoth(buffer[:0], old, now) {
		o.compareField(name, old, now, at)
	}
}

func (o *objectLayout) compareField(name string, old, now map[string]any, at *fieldSet) {
	was, is := freeEntry(old, name), freeEntry(now, name)
	if f, ok := o.fields[name]; ok {
		f.layout.below(f.element, was, is, at)
	} else if o.others != nil {
		o.others.below("f:"+escape(name), was, is, at)
	}
}

// fieldsOfBoth returns the names of the fields of both objects, sorted.
func fieldsOfBoth(names []string, old, now map[string]any) []string {
	for name := range old {
		names = append(names, name)
	}
	for name := range now {
		if _, found := old[name]; !found {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// below compares a nested value. Most values are unchanged, so it checks that first.
func (l *layout) below(element string, old, now any, at *fieldSet) {
	if sameJSON(old, now) {
		return
	}
	l.compare(old, now, at.begin(element))
	at.end()
}

func (l *layout) same(a, b any) bool { return sameJSON(a, b) }

func (l *layout) nothing() any { return absent{} }

// identified returns the items of a list, sorted by element.
func (l *listLayout) identified(list []any) []item[any] {
	items := make([]item[any], len(list))
	for i, v := range list {
		items[i] = item[any]{element: l.element(v), value: v}
	}
	sortItems(items)
	return items
}

// appendJSON appends a value's JSON, escaped for use inside a JSON string. It formats exponents with two digits as
// the library does, unlike encoding/json.
func appendJSON(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case float64:
		format := byte('f')
		if size := math.Abs(v); size != 0 && (size < 1e-6 || size >= 1e21) {
			format = 'e'
		}
		return strconv.AppendFloat(b, v, format, -1, 64)
	}
	return appendScalar(b, reflect.ValueOf(v))
}

// sameJSON reports whether Kubernetes' library considers two values equal: an integer equals the float of the same
// value.
func sameJSON(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name, value := range a {
			other, found := b[name]
			if !found || !sameJSON(value, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, sameJSON)
	case int64:
		if f, ok := b.(float64); ok {
			return float64(a) == f
		}
	case float64:
		if n, ok := b.(int64); ok {
			return a == float64(n)
		}
	}
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	return a == b
}
