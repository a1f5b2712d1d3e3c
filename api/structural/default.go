package structural

import "k8s.io/apimachinery/pkg/runtime"

// Default sets each field that has a default if it is missing, or null without being nullable. It does so in objects
// that exist, and does not create missing ones. It is idempotent.
func (s *Schema) Default(obj map[string]any) { s.setDefaults(obj) }

func (s *Schema) setDefaults(value any) {
	if s == nil || !s.below.defaults {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		for _, name := range s.defaulted {
			field := s.properties[name]
			if old, found := value[name]; !found || old == nil && !field.nullable {
				value[name] = runtime.DeepCopyJSONValue(field.def)
			}
		}
		for name, field := range value {
			below, ok := s.field(name)
			if !ok || below == nil {
				continue
			}
			if field == nil && !below.nullable && below.def != nil {
				field = runtime.DeepCopyJSONValue(below.def)
				value[name] = field
			}
			below.setDefaults(field)
		}
	case []any:
		if s.items == nil { // the value does not have the schema's type
			return
		}
		for i, item := range value {
			if item == nil && !s.items.nullable && s.items.def != nil {
				item = runtime.DeepCopyJSONValue(s.items.def)
				value[i] = item
			}
			s.items.setDefaults(item)
		}
	}
}

// DropNulls removes a null field if the schema does not allow null and has no default, as the decoding of a typed
// object does. Default sets the fields that have a default.
func (s *Schema) DropNulls(obj map[string]any) { s.dropNulls(obj) }

func (s *Schema) dropNulls(value any) {
	if s == nil {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		for name, field := range value {
			below, _ := s.field(name)
			switch {
			case below == nil:
			case field == nil && !below.nullable && below.def == nil:
				delete(value, name)
			default:
				below.dropNulls(field)
			}
		}
	case []any:
		for _, item := range value {
			s.items.dropNulls(item)
		}
	}
}
