package structural

import (
	"iter"
	"slices"
)

// These accessors are for field ownership, which is outside of this package: they describe the parts of a value that
// managers can own. Callers must not change the results. A nil Schema returns the zero value of each.

// Type returns the JSON type of the values, or "" if several types are allowed, as with x-kubernetes-int-or-string.
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

// Format returns the format of strings and numbers, including formats that are not checked.
func (s *Schema) Format() string {
	if s == nil {
		return ""
	}
	return s.format
}

// DefaultValue returns the default of the field, as JSON in Go's types, or nil if there is none.
func (s *Schema) DefaultValue() any {
	if s == nil {
		return nil
	}
	return s.def
}

// Properties iterates over the declared properties, sorted by name.
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

// Property returns the schema of a declared property, or nil.
func (s *Schema) Property(name string) *Schema {
	if s == nil {
		return nil
	}
	return s.properties[name]
}

// AdditionalProperties returns the schema of the fields that are not declared, or nil if they have none, and whether
// such fields are allowed. stated is false if the schema does not have additionalProperties.
func (s *Schema) AdditionalProperties() (schema *Schema, allowed, stated bool) {
	if s == nil {
		return nil, false, false
	}
	return s.additional, s.open && !s.closed, s.open
}

// Items returns the schema of a list's items, or nil if there is none.
func (s *Schema) Items() *Schema {
	if s == nil {
		return nil
	}
	return s.items
}

// ListType returns x-kubernetes-list-type: "atomic" (the default), "set" or "map".
func (s *Schema) ListType() string {
	switch {
	case s != nil && s.listType == set:
		return "set"
	case s != nil && s.listType == associative:
		return "map"
	}
	return "atomic"
}

// ListMapKeys returns the keys of the items of a list of type map (x-kubernetes-list-map-keys).
func (s *Schema) ListMapKeys() []string {
	if s == nil {
		return nil
	}
	return s.listKeys
}

// AtomicMap reports whether an object has x-kubernetes-map-type: atomic.
func (s *Schema) AtomicMap() bool { return s != nil && s.whole }

// PreservesUnknownFields returns x-kubernetes-preserve-unknown-fields.
func (s *Schema) PreservesUnknownFields() bool { return s != nil && s.preserve }

// EmbedsResource returns x-kubernetes-embedded-resource: the values are objects with apiVersion, kind and metadata.
func (s *Schema) EmbedsResource() bool { return s != nil && s.embedded }
