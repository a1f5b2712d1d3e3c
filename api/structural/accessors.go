package structural

import (
	"iter"
	"slices"
)

// These accessors are for code outside of this package, which finds out by them who owns which part of a value. Their
// results must not be changed. A nil Schema has the zero value of each.

// Type is the JSON type of the values; "" if they may be of several types, as with x-kubernetes-int-or-string.
func (s *Schema) Type() string {
	if s == nil {
		return ""
	}
	if i := slices.IndexFunc(typeNames[:], func(name string) bool { return s.types.String() == name }); i >= 0 {
		return typeNames[i]
	}
	return ""
}

// Nullable reports whether a value may be null.
func (s *Schema) Nullable() bool { return s != nil && s.nullable }

// Format is the format of strings and numbers, whether it is checked or not.
func (s *Schema) Format() string {
	if s == nil {
		return ""
	}
	return s.format
}

// DefaultValue is the value of a field that is left out, as JSON in Go's types; nil if there is none.
func (s *Schema) DefaultValue() any {
	if s == nil {
		return nil
	}
	return s.def
}

// Properties are the fields that the schema names, sorted.
func (s *Schema) Properties() iter.Seq2[string, *Schema] {
	return func(yield func(string, *Schema) bool) {
		if s == nil {
			return
		}
		for _, name := range s.names {
			if !yield(name, s.properties[name]) {
				return
			}
		}
	}
}

// Property is the field of a name, nil if the schema does not name it.
func (s *Schema) Property(name string) *Schema {
	if s == nil {
		return nil
	}
	return s.properties[name]
}

// AdditionalProperties is what the schema says of the fields that it does not name: their schema, nil if it has none;
// and whether they are allowed. stated is false if it says nothing of them.
func (s *Schema) AdditionalProperties() (schema *Schema, allowed, stated bool) {
	if s == nil {
		return nil, false, false
	}
	return s.additional, s.open && !s.closed, s.open
}

// Items is the schema of a list's elements; nil if there is none.
func (s *Schema) Items() *Schema {
	if s == nil {
		return nil
	}
	return s.items
}

// ListType is x-kubernetes-list-type: "atomic", which is the default, "set" or "map".
func (s *Schema) ListType() string {
	switch {
	case s != nil && s.listType == set:
		return "set"
	case s != nil && s.listType == associative:
		return "map"
	}
	return "atomic"
}

// ListMapKeys are the fields that identify an element of a list of type map.
func (s *Schema) ListMapKeys() []string {
	if s == nil {
		return nil
	}
	return s.listKeys
}

// AtomicMap reports whether an object has the x-kubernetes-map-type atomic.
func (s *Schema) AtomicMap() bool { return s != nil && s.whole }

// PreservesUnknownFields is x-kubernetes-preserve-unknown-fields.
func (s *Schema) PreservesUnknownFields() bool { return s != nil && s.preserve }

// EmbedsResource is x-kubernetes-embedded-resource: the values are objects with apiVersion, kind and metadata.
func (s *Schema) EmbedsResource() bool { return s != nil && s.embedded }
