package structural

import (
	"fmt"
	"reflect"
	"strings"
)

// past pairs a value with the value at its place before the update. A nil past belongs to a value without a former
// value: it is new, or cannot be correlated. Each walk has its own pasts.
type past struct {
	schema     *Schema
	value, old any
	parent     *past

	compared, same bool
	byKey          map[any]any // old's items, if it is a list with keys
}

// unchanged reports whether the value equals its former value. A changed value marks all the values around it as
// changed, so that a walk compares no value twice.
func (p *past) unchanged() bool {
	if p == nil {
		return false
	}
	if !p.compared {
		p.compared, p.same = true, equal(p.schema, p.value, p.old)
		for q := p.parent; !p.same && q != nil && !q.compared; q = q.parent {
			q.compared = true
		}
	}
	return p.same
}

// key returns the past of a field. The root's apiVersion and kind have none: a stored object has been converted
// to the version of the comparison.
func (p *past) key(name string, root bool) *past {
	if p == nil || root && (name == "apiVersion" || name == "kind") {
		return nil
	}
	below, _ := p.schema.field(name)
	fields, _ := p.value.(map[string]any)
	olds, _ := p.old.(map[string]any)
	value, isNow := fields[name]
	old, wasThere := olds[name]
	if below == nil || !isNow || !wasThere {
		return nil
	}
	return &past{schema: below, value: value, old: old, parent: p}
}

// index returns the past of a list's item.
func (p *past) index(i int) *past {
	if p == nil || !p.schema.correlates() {
		return nil
	}
	list, _ := p.value.([]any)
	olds, _ := p.old.([]any)
	if i >= len(list) {
		return nil
	}
	if p.byKey == nil {
		p.byKey = p.schema.index(olds)
	}
	key, ok := p.schema.itemKey(list[i])
	old := p.byKey[key]
	if !ok || old == nil {
		return nil
	}
	return &past{schema: p.schema.items, value: list[i], old: old, parent: p}
}

// correlates reports whether the items of a list have keys, so that an item can be matched with its former value.
func (s *Schema) correlates() bool {
	return s.types == array && s.listType == associative && len(s.listKeys) > 0 && s.items != nil
}

// index maps keys to the items of a list. If several items have the same keys, it has the first.
func (s *Schema) index(list []any) map[any]any {
	byKey := make(map[any]any, len(list))
	for _, item := range list {
		if key, ok := s.itemKey(item); ok {
			if _, found := byKey[key]; !found {
				byKey[key] = item
			}
		}
	}
	return byKey
}

// itemKey returns the key of an item. An item with a missing key, or with one that is not a scalar, has none.
func (s *Schema) itemKey(item any) (key any, ok bool) {
	obj, ok := item.(map[string]any)
	if !ok {
		return nil, false
	}
	var all strings.Builder
	for _, name := range s.listKeys {
		switch value := obj[name].(type) {
		case bool, float64, int64, string:
			if len(s.listKeys) == 1 {
				return value, true
			}
			fmt.Fprintf(&all, "%T %q ", value, fmt.Sprint(value))
		default:
			return nil, false
		}
	}
	return all.String(), true
}

// equal reports whether ratcheting treats two values as unchanged. The order of a list with keys does not matter. As
// in kube-apiserver, an object with fields that have no schema equals no other.
func equal(s *Schema, a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		other, ok := b.(map[string]any)
		if !ok || len(a) != len(other) {
			return false
		}
		for name, value := range a {
			below, _ := s.field(name)
			old, found := other[name]
			if below == nil || !found || !equal(below, value, old) {
				return false
			}
		}
		return true
	case []any:
		other, ok := b.([]any)
		if !ok || len(a) != len(other) {
			return false
		}
		if !s.correlates() {
			return reflect.DeepEqual(a, other)
		}
		byKey := s.index(other)
		for _, item := range a {
			key, ok := s.itemKey(item)
			if !ok || byKey[key] == nil || !equal(s.items, item, byKey[key]) {
				return false
			}
		}
		return true
	}
	return a == b
}
