package structural

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/coxswain-dev/coxswain/api/field"
)

// ValidateLists checks that a list with x-kubernetes-list-type set has no item twice, and that a list with map has no
// two items with the same keys. A missing key counts as a value of its own.
func (s *Schema) ValidateLists(obj map[string]any) field.ErrorList {
	return validateLists(obj, s, nil, nil)
}

func validateLists(value any, s *Schema, path *field.Path, errs field.ErrorList) field.ErrorList {
	if s == nil || s.listType == atomic && !s.below.lists || field.Enough(errs) {
		return errs
	}
	switch value := value.(type) {
	case map[string]any:
		if !s.below.lists {
			return errs
		}
		for _, name := range slices.Sorted(maps.Keys(value)) {
			if below, _ := s.field(name); below != nil {
				errs = validateLists(value[name], below, s.step(path, name), errs)
			}
		}
	case []any:
		switch s.listType {
		case set:
			errs = append(errs, validateSet(value, path)...)
		case associative:
			errs = append(errs, s.validateMap(value, path)...)
		}
		if s.below.lists || s.items != nil && s.items.listType != atomic {
			for i, item := range value {
				errs = validateLists(item, s.items, path.Index(i), errs)
			}
		}
	}
	return errs
}

func validateSet(list []any, path *field.Path) (errs field.ErrorList) {
	for _, i := range repeated(list) {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, field.Duplicate(path.Index(i), list[i]))
	}
	return errs
}

func (s *Schema) validateMap(list []any, path *field.Path) (errs field.ErrorList) {
	keys := make([]any, len(list))
	for i, item := range list {
		obj, ok := item.(map[string]any)
		if !ok && item != nil {
			return field.ErrorList{field.Invalid(path.Index(i), item,
				"must be an object for an array of list-type map")}
		}
		key := make(map[string]any, len(s.listKeys))
		for _, name := range s.listKeys {
			if value, found := obj[name]; found {
				key[name] = value
			}
		}
		keys[i] = key
	}
	return validateSet(keys, path)
}

// repeated returns, for each value that occurs more than once, the index of its second occurrence.
func repeated(list []any) (indices []int) {
	if len(list) < 2 {
		return nil
	}
	times := make(map[any]int, len(list))
	for i, value := range list {
		switch value.(type) {
		case map[string]any, []any:
			document, err := json.Marshal(value)
			if err != nil { // it came from JSON
				continue
			}
			value = compound(document)
		}
		if times[value]++; times[value] == 2 {
			indices = append(indices, i)
		}
	}
	return indices
}

// compound is the JSON document of a list or an object. Its own type keeps it distinct from a string with the same
// text.
type compound string
