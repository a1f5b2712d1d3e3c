package structural

import (
	"errors"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// errNoPlace means that a default is at a position that no object can have.
var errNoPlace = errors.New("the default is in no object")

// PruneDefaults removes the parts of defaults that pruning would remove from an object: fields that the schema does
// not declare, and unknown or malformed metadata of the resource and of embedded resources. It reports whether it
// removed any. The schema must not be in use yet.
func (s *Schema) PruneDefaults() (changed bool) {
	if s == nil {
		return false
	}
	changed, _ = s.pruneDefaults(place{root: s.asRoot()})
	return changed
}

// pruneDefaults returns errNoPlace at the first default that is at no position of an object.
func (s *Schema) pruneDefaults(p place) (changed bool, err error) {
	if s == nil || s.def == nil && !s.below.defaults {
		return false, nil
	}
	if s.def != nil {
		obj := p.around(runtime.DeepCopyJSONValue(s.def))
		if obj == nil || (&coercer{dropMalformed: true}).coerce(obj, p.root, nil) != nil {
			return false, errNoPlace
		}
		(&pruner{}).prune(obj, p.root, false)
		pruned := p.in(obj)
		changed = !reflect.DeepEqual(pruned, s.def)
		s.def = pruned
	}
	below := func(s *Schema, p place) {
		if err == nil {
			var one bool
			one, err = s.pruneDefaults(p)
			changed = changed || one
		}
	}
	below(s.additional, p.field("*"))
	below(s.items, p.item())
	for _, name := range s.names {
		below(s.properties[name], p.field(name))
	}
	s.defaulted = slices.DeleteFunc(s.defaulted, func(name string) bool { return s.properties[name].def == nil })
	return changed, err
}
