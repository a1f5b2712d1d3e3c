package apiextensions

import (
	"slices"

	"github.com/coxswain-dev/coxswain/api/field"
)

// The values of x-kubernetes-list-type and x-kubernetes-map-type that the checks use.
const (
	atomic  = "atomic"
	listSet = "set"
	listMap = "map"
)

var (
	listTypes = []string{atomic, listSet, listMap}
	mapTypes  = []string{atomic, "granular"}
)

// extensions checks the x-kubernetes-… fields of a schema.
func (w *walk) extensions(s *node, path *field.Path) {
	if keep := s.XPreserveUnknownFields; keep != nil && !*keep {
		w.add(field.Invalid(path.Child("x-kubernetes-preserve-unknown-fields"), *keep, "must be true or undefined"))
	}
	if s.XMapType != nil {
		w.requireTypeFor(s, "object", "x-kubernetes-map-type", path)
		if !slices.Contains(mapTypes, *s.XMapType) {
			w.add(field.NotSupported(path.Child("x-kubernetes-map-type"), *s.XMapType, mapTypes))
		}
	}
	if s.XListType != nil {
		if !w.requireTypeFor(s, "array", "x-kubernetes-list-type", path) && w.requireAtomicSet {
			w.errs = append(w.errs, setOfAtomic(s, path.Child("items"))...)
		}
		if !slices.Contains(listTypes, *s.XListType) {
			w.add(field.NotSupported(path.Child("x-kubernetes-list-type"), *s.XListType, listTypes))
		}
	}
	w.mapKeys(s, path)
	if w.requireMapKeys {
		w.errs = append(w.errs, requiredKeys(s, path.Child("items"))...)
	}
}

// requireTypeFor adds an error if the type is not the required one. It reports whether it did.
func (w *walk) requireTypeFor(s *node, want, extension string, path *field.Path) bool {
	detail := "must be " + want + " if " + extension + " is specified"
	switch s.Type {
	case want:
		return false
	case "":
		w.add(field.Required(path.Child("type"), detail))
	default:
		w.add(field.Invalid(path.Child("type"), s.Type, detail))
	}
	return true
}

// setOfAtomic returns the errors in the items of a set: lists and objects in it must be atomic.
func setOfAtomic(s *node, path *field.Path) field.ErrorList {
	const detail = "must be atomic as item of a list with x-kubernetes-list-type=set"
	if s.XListType == nil || *s.XListType != listSet || s.items == nil {
		return nil
	}
	switch item := s.items; {
	case item.Type == "array" && item.XListType != nil && *item.XListType != atomic:
		return field.ErrorList{field.Invalid(path.Child("x-kubernetes-list-type"), item.XListType, detail)}
	case item.Type == "object" && (item.XMapType == nil || *item.XMapType != atomic):
		return field.ErrorList{field.Invalid(path.Child("x-kubernetes-map-type"), item.XListType, detail)}
	}
	return nil
}

// mapKeys checks the keys of a list that is a map.
func (w *walk) mapKeys(s *node, path *field.Path) {
	isMap := s.XListType != nil && *s.XListType == listMap
	if len(s.XListMapKeys) > 0 && !isMap {
		const detail = "must be map if x-kubernetes-list-map-keys is non-empty"
		if s.XListType == nil {
			w.add(field.Required(path.Child("x-kubernetes-list-type"), detail))
		} else {
			w.add(field.Invalid(path.Child("x-kubernetes-list-type"), *s.XListType, detail))
		}
	}
	if !isMap {
		return
	}
	if len(s.XListMapKeys) == 0 {
		w.add(field.Required(path.Child("x-kubernetes-list-map-keys"),
			"must not be empty if x-kubernetes-list-type is map"))
	}
	items := path.Child("items")
	switch {
	case s.Items == nil:
		w.add(field.Required(items, "must have a schema if x-kubernetes-list-type is map"))
	case s.items == nil:
		w.add(field.Invalid(items, field.OmitValueType{},
			"must only have a single schema if x-kubernetes-list-type is map"))
	case s.items.Type != "object":
		w.add(field.Invalid(items.Child("type"), s.items.Type,
			"must be object if parent array's x-kubernetes-list-type is map"))
	default:
		w.keysOfItems(s, path)
	}
}

func (w *walk) keysOfItems(s *node, path *field.Path) {
	const maxShown = 20 // in an error
	shown := s.XListMapKeys[:min(len(s.XListMapKeys), maxShown)]
	seen := map[string]bool{}
	for _, key := range s.XListMapKeys {
		if field.Enough(w.errs) {
			return
		}
		switch p := s.items.property(key); {
		case p == nil:
			w.add(field.Invalid(path.Child("x-kubernetes-list-map-keys"), shown,
				"entries must all be names of item properties"))
		case p.Type == "array" || p.Type == "object":
			w.add(field.Invalid(path.Child("items").Child("properties").Key(key).Child("type"), s.items.Type,
				"must be a scalar type if parent array's x-kubernetes-list-type is map"))
		}
		if seen[key] {
			w.add(field.Invalid(path.Child("x-kubernetes-list-map-keys"), shown,
				"must not contain duplicate entries"))
		}
		seen[key] = true
	}
}

// requiredKeys returns the errors in the items of a set or a map: no item may be nullable, and every key of a map must
// be required or have a default.
func requiredKeys(s *node, path *field.Path) (errs field.ErrorList) {
	if s.XListType == nil || s.items == nil || *s.XListType != listSet && *s.XListType != listMap {
		return nil
	}
	if s.items.Nullable {
		errs = append(errs, field.Forbidden(path.Child("nullable"),
			"cannot be nullable when x-kubernetes-list-type is "+*s.XListType))
	}
	if *s.XListType == listSet {
		return errs
	}
	required := make(map[string]bool, len(s.items.Required))
	for _, name := range s.items.Required {
		required[name] = true
	}
	for _, key := range s.XListMapKeys {
		p := s.items.property(key)
		if p == nil || field.Enough(errs) { // mapKeys reports a key that is not a property
			continue
		}
		property := path.Child("properties").Key(key)
		if !required[key] && p.Default == nil {
			errs = append(errs, field.Required(property.Child("default"), "this property is in "+
				"x-kubernetes-list-map-keys, so it must have a default or be a required property"))
		}
		if p.Nullable {
			errs = append(errs, field.Forbidden(property.Child("nullable"),
				"this property is in x-kubernetes-list-map-keys, so it cannot be nullable"))
		}
	}
	return errs
}
