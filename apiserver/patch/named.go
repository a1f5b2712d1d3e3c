package patch

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
)

// A patch most often names one member of the object, its status or a member of its metadata. Named.Apply patches and
// decodes only the named members, and takes the others from the object that has been decoded already.

// Named are the members that a merge or strategic patch names.
type Named struct {
	// members of the object; nil if the patch needs the whole object, because a directive
	// may affect any member.
	members []string
	// metadata are the members of metadata; nil for the whole metadata.
	metadata []string
}

// NamedBy returns the members that a patch names.
func NamedBy(patch []byte) (n Named) {
	members, err := membersOf(patch)
	if err != nil {
		return Named{}
	}
	if n.members = plainNames(members); n.members == nil {
		return Named{}
	}
	for _, m := range members {
		if m.name == "metadata" {
			below, _ := membersOf(m.value) // a value that is not an object has none
			n.metadata = plainNames(below)
		}
	}
	return n
}

// plainNames returns the members' names, nil if there are none or one is a directive's.
func plainNames(members []member) (names []string) {
	for _, m := range members {
		if strings.HasPrefix(m.name, "$") {
			return nil
		}
		names = append(names, m.name)
	}
	return names
}

// Apply returns a patched copy of old. doc is old's document, and apply patches a document. Apply reports false if
// it meets an error or a special case; the caller then patches the whole document, and reports the error.
func (n Named) Apply(old api.Object, doc []byte, apply func([]byte) ([]byte, error)) (api.Object, bool) {
	if n.members == nil {
		return nil, false
	}
	part, err := n.cut(doc)
	if err != nil {
		return nil, false
	}
	if part, err = apply(part); err != nil {
		return nil, false
	}
	patched := old.DeepCopyObject().(api.Object)
	if !n.clear(patched) {
		return nil, false
	}
	if !encoding.UnmarshalKnown(part, patched) ||
		patched.GetObjectKind().GroupVersionKind() != old.GetObjectKind().GroupVersionKind() {
		return nil, false
	}
	return patched, true
}

// cut returns a document with the named members only.
func (n Named) cut(doc []byte) ([]byte, error) {
	members, err := membersOf(doc)
	if err != nil {
		return nil, err
	}
	part := []byte{'{'}
	for _, m := range members {
		if !slices.Contains(n.members, m.name) {
			continue
		}
		part = appendName(part, 1, m.name)
		if m.name != "metadata" || n.metadata == nil {
			part = append(part, m.value...)
			continue
		}
		below, err := membersOf(m.value)
		if err != nil {
			return nil, err
		}
		part = append(part, '{')
		empty := len(part)
		for _, m := range below {
			if slices.Contains(n.metadata, m.name) {
				part = append(appendName(part, empty, m.name), m.value...)
			}
		}
		part = append(part, '}')
	}
	return append(part, '}'), nil
}

// clear empties the named members of an object. It reports false if the object has no such fields.
func (n Named) clear(obj api.Object) bool {
	for _, name := range n.members {
		if meta, ok := obj.(metav1.ObjectMetaAccessor); ok && name == "metadata" && n.metadata != nil {
			if !clearFields(reflect.ValueOf(meta.GetObjectMeta()), n.metadata) {
				return false
			}
		} else if !clearFields(reflect.ValueOf(obj), []string{name}) {
			return false
		}
	}
	return true
}

func clearFields(pointer reflect.Value, names []string) bool {
	fields := encoding.JSONFields(pointer.Type())
	for _, name := range names {
		index, ok := fields[name]
		if !ok {
			return false
		}
		pointer.Elem().FieldByIndex(index).SetZero()
	}
	return true
}
