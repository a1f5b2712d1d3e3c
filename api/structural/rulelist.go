package structural

import (
	"fmt"
	"reflect"

	celtypes "github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"github.com/coxswain-dev/coxswain/api/cel"
)

// listValue is a list in expressions. A list that is a set or has keys equals another in any order. + adds the missing
// items to it, and replaces items with the same keys.
type listValue struct {
	items  []any
	schema *Schema
	made   []ref.Val // the result of an addition, in place of items
	kind   listType
	keys   []string
}

var _ traits.Lister = (*listValue)(nil)

func (l *listValue) len() int { return max(len(l.items), len(l.made)) }

func (l *listValue) at(i int) ref.Val {
	if l.made != nil {
		return l.made[i]
	}
	return ruleValue(l.items[i], l.schema)
}

// all returns copies of the list's values.
func (l *listValue) all() []ref.Val {
	values := make([]ref.Val, l.len())
	for i := range values {
		values[i] = l.at(i)
	}
	return values
}

// Get implements traits.Indexer.
func (l *listValue) Get(index ref.Val) ref.Val {
	i, ok := index.(celtypes.Int)
	switch {
	case !ok:
		return celtypes.ValOrErr(index, "unsupported index: %v", index)
	case i < 0 || int(i) >= l.len():
		return celtypes.NewErr("index out of bounds: %v", index)
	}
	return l.at(int(i))
}

// Size implements traits.Sizer.
func (l *listValue) Size() ref.Val { return celtypes.Int(l.len()) }

// Iterator implements traits.Iterable.
func (l *listValue) Iterator() traits.Iterator {
	return celtypes.NewRefValList(celtypes.DefaultTypeAdapter, l.all()).Iterator()
}

// Contains implements traits.Container.
func (l *listValue) Contains(value ref.Val) ref.Val {
	if celtypes.IsUnknownOrError(value) {
		return value
	}
	var wrong ref.Val
	for i := range l.len() {
		same := l.at(i).Equal(value)
		if _, ok := same.(celtypes.Bool); !ok && wrong == nil {
			wrong = celtypes.MaybeNoSuchOverloadErr(same)
		}
		if same == celtypes.True {
			return celtypes.True
		}
	}
	if wrong != nil {
		return wrong
	}
	return celtypes.False
}

// identity returns the key that distinguishes an item: the value itself in a set, the values of the keys in a map.
func (l *listValue) identity(item ref.Val) (any, ref.Val) {
	if l.kind == set {
		switch item.(type) {
		case traits.Lister, traits.Mapper:
			return nil, celtypes.NewErr("listSet operations are only supported on lists of scalar values")
		}
		return comparable(item.Value()), nil
	}
	var keys [4]any
	fields, _ := item.(traits.Mapper)
	for i, name := range l.keys {
		var key any
		if escaped, ok := cel.Escape(name); ok {
			name = escaped
		}
		if fields != nil {
			if value, found := fields.Find(celtypes.String(name)); found && !celtypes.IsUnknownOrError(value) {
				key = comparable(value.Value())
			}
		}
		if i < len(keys)-1 {
			keys[i] = key
		} else { // there may be any number of keys
			keys[len(keys)-1] = fmt.Sprintf("%v %#v", keys[len(keys)-1], key)
		}
	}
	return keys, nil
}

// comparable returns a value that can be the key of a map.
func comparable(value any) any {
	if value != nil && !reflect.TypeOf(value).Comparable() {
		return fmt.Sprintf("%#v", value)
	}
	return value
}

// byIdentity maps the identity of each item to its index.
func (l *listValue) byIdentity(items []ref.Val) (map[any]int, ref.Val) {
	index := make(map[any]int, len(items))
	for i, item := range items {
		id, err := l.identity(item)
		if err != nil {
			return nil, err
		}
		index[id] = i
	}
	return index, nil
}

// Equal implements ref.Val.
func (l *listValue) Equal(other ref.Val) ref.Val {
	list, ok := other.(traits.Lister)
	if !ok {
		return celtypes.MaybeNoSuchOverloadErr(other)
	}
	if l.Size() != list.Size() {
		return celtypes.False
	}
	if l.kind == atomic {
		for i := range l.len() {
			if same := l.at(i).Equal(list.Get(celtypes.Int(i))); same != celtypes.True {
				return same // false or an error
			}
		}
		return celtypes.True
	}
	items := l.all()
	index, err := l.byIdentity(items)
	if err != nil {
		return err
	}
	seen := make(map[any]bool, len(index))
	for it := list.Iterator(); it.HasNext() == celtypes.True; {
		item := it.Next()
		id, err := l.identity(item)
		if err != nil {
			return err
		}
		i, found := index[id]
		if !found {
			return celtypes.False
		}
		if l.kind == associative {
			if same := items[i].Equal(item); same != celtypes.True {
				return same
			}
		}
		seen[id] = true
	}
	return celtypes.Bool(len(seen) == len(index))
}

// Add implements traits.Adder.
func (l *listValue) Add(other ref.Val) ref.Val {
	list, ok := other.(traits.Lister)
	if !ok {
		return celtypes.MaybeNoSuchOverloadErr(other)
	}
	sum := &listValue{made: l.all(), kind: l.kind, keys: l.keys}
	if l.kind == atomic {
		for it := list.Iterator(); it.HasNext() == celtypes.True; {
			sum.made = append(sum.made, it.Next())
		}
		return celtypes.NewRefValList(celtypes.DefaultTypeAdapter, sum.made)
	}
	index, err := l.byIdentity(sum.made)
	if err != nil {
		return err
	}
	for it := list.Iterator(); it.HasNext() == celtypes.True; {
		item := it.Next()
		id, err := l.identity(item)
		if err != nil {
			return err
		}
		if i, found := index[id]; found {
			if l.kind == associative {
				sum.made[i] = item
			}
			continue
		}
		if l.kind == set {
			index[id] = len(sum.made)
		}
		sum.made = append(sum.made, item)
	}
	return sum
}

// ConvertToNative implements ref.Val.
func (l *listValue) ConvertToNative(t reflect.Type) (any, error) {
	if t.Kind() != reflect.Slice {
		return nil, fmt.Errorf("type conversion error from '%s' to '%s'", l.Type(), t)
	}
	if l.made != nil {
		return celtypes.NewRefValList(celtypes.DefaultTypeAdapter, l.made).ConvertToNative(t)
	}
	if l.schema.types != text {
		return l.items, nil
	}
	words := make([]string, len(l.items)) // ext.Strings' join requires this type
	for i, item := range l.items {
		word, ok := item.(string)
		if !ok {
			return nil, fmt.Errorf("expected all elements to be of type string, but got %T", item)
		}
		words[i] = word
	}
	return words, nil
}

// ConvertToType implements ref.Val.
func (l *listValue) ConvertToType(t ref.Type) ref.Val {
	switch t {
	case celtypes.ListType:
		return l
	case celtypes.TypeType:
		return celtypes.ListType
	}
	return celtypes.NewErr("type conversion error from '%s' to '%s'", l.Type(), t.TypeName())
}

// Type implements ref.Val.
func (l *listValue) Type() ref.Type { return celtypes.ListType }

// Value implements ref.Val.
func (l *listValue) Value() any {
	if l.made != nil {
		return l.made
	}
	return l.items
}
