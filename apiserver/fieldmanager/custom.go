package fieldmanager

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/api/structural"
)

// The metadata of custom resources is a Go type and has a shape. Their other fields have a layout, derived from the
// schema of their version.

// errUntracked is returned for an object that does not match the types in its schema or has items without
// identification. The schema may have changed since the object was written.
var errUntracked = errors.New("the object does not follow its schema")

// layoutKind is the key of a version's cached layout.
type layoutKind struct{}

// layoutOfVersion returns the layout of the objects of a version. It is computed on first use.
func layoutOfVersion(v *customresource.Version) (*layout, error) {
	l, err := v.Derived(layoutKind{}, func(s *structural.Schema) any { return rootLayout(s) })
	if err != nil {
		return nil, err
	}
	return l.(*layout), nil
}

// metaShape returns the shape of the metadata of custom resources.
var metaShape = sync.OnceValue(func() *shape {
	shapes.Lock()
	defer shapes.Unlock()
	return shapeOfType(reflect.TypeFor[metav1.ObjectMeta](), "").without(unowned["metadata"])
})

// customChanges is the counterpart of changes for custom resources. It leaves out the fields in beside. It returns
// errUntracked if an object does not fit the layout; see layout.fits for unique.
func customChanges(old, obj *customresource.Object, beside []string, unique bool) (*fieldSet, error) {
	l, err := layoutOfVersion(obj.Version())
	if err != nil {
		return nil, err
	}
	var buffer [16]string
	was, is, names := old.Fields, obj.Fields, append(buffer[:0], "metadata")
	if l == deduced {
		was, is, names = withMeta(old), withMeta(obj), buffer[:0]
	}
	if !l.fits(was, unique) || !l.fits(is, unique) {
		return nil, errUntracked
	}
	root := fieldSets.Get().(*fieldSet)
	if l.object.form == whole {
		return root, nil // an object as a whole has no owner
	}
	for _, name := range fieldsOfBoth(names, was, is) {
		switch {
		case slices.Contains(beside, name):
		case name == "metadata" && l != deduced:
			metaShape().below("f:metadata", reflect.ValueOf(&old.ObjectMeta).Elem(),
				reflect.ValueOf(&obj.ObjectMeta).Elem(), root)
		default:
			l.object.compareField(name, was, is, root)
		}
	}
	return root, nil
}

// withMeta returns the fields and the metadata of an object without a schema, except the parts that are never
// owned.
func withMeta(o *customresource.Object) map[string]any {
	fields := o.Content()
	maps.DeleteFunc(fields, func(name string, _ any) bool { return slices.Contains(unowned[""], name) })
	maps.DeleteFunc(fields["metadata"].(map[string]any), func(name string, _ any) bool {
		return slices.Contains(unowned["metadata"], name)
	})
	return fields
}

// besideOf returns the fields that a write of a custom resource cannot change.
func besideOf(res *api.Resource, subresource string) []string {
	switch {
	case res.Status == nil:
		return nil
	case subresource == "":
		return []string{"status"}
	case subresource == "status":
		return []string{"metadata", "spec"}
	}
	return nil
}

// reconcile adapts entries to a changed schema: an entry that owns parts of a value that is now atomic gets the
// whole value. find returns the registration of an entry's version, or nil if there is none.
func reconcile(entries []metav1.ManagedFieldsEntry,
	find func(apiVersion string) *api.Resource) ([]metav1.ManagedFieldsEntry, error) {
	reconciled := false
	for i := range entries {
		e := entries[i]
		res := find(e.APIVersion)
		if res == nil {
			continue
		}
		l, err := layoutOfVersion(res.New().(*customresource.Object).Version())
		if err != nil {
			return nil, err
		}
		if l.atomic() {
			continue // as in kube-apiserver, which has no path for the whole object
		}
		if _, agrees := l.agrees(e.FieldsV1.GetRawString()); agrees {
			continue
		}
		fields, err := fieldsOfEntry(e)
		if err != nil {
			continue
		}
		fields.gather(l)
		if !reconciled {
			entries, reconciled = slices.Clone(entries), true
		}
		entries[i].FieldsV1 = fields.fieldsV1()
	}
	return entries, nil
}

// atomic reports whether a value of the layout is owned as a whole although it may have parts.
func (l *layout) atomic() bool {
	switch {
	case l.object != nil:
		return !l.object.deduced && l.object.form == whole
	case l.scalar == noScalar:
		return l.list.form == whole
	}
	return false
}

// step returns the layout of a nested value by its path element, or nil if it is unknown.
func (l *layout) step(element string) *layout {
	switch {
	case element == ".":
		return nil
	case l.object != nil:
		name, isField := strings.CutPrefix(element, "f:")
		if l.object.deduced {
			return nil
		}
		if !isField {
			return l.object.others
		}
		if strings.IndexByte(name, '\\') >= 0 {
			name = unescape(name)
		}
		return l.object.field(name)
	case l.scalar == noScalar:
		return l.list.items
	}
	return nil
}

// agrees parses an object of a FieldsV1 document and returns the remaining text. It stops and returns false when it
// finds parts of an atomic value or a syntax error.
func (l *layout) agrees(doc string) (rest string, agrees bool) {
	doc, ok := strings.CutPrefix(doc, "{")
	if rest, end := strings.CutPrefix(doc, "}"); end || !ok {
		return rest, ok
	}
	if l.atomic() {
		return doc, false
	}
	for {
		name, rest, ok := parseName(doc)
		if !ok {
			return doc, false
		}
		if below := l.step(name); below == nil {
			rest = skipObject(rest)
		} else if rest, ok = below.agrees(rest); !ok {
			return rest, false
		}
		if doc, ok = strings.CutPrefix(rest, ","); !ok {
			return strings.CutPrefix(rest, "}")
		}
	}
}

// gather replaces the parts of atomic values with the whole values.
func (f *fieldSet) gather(l *layout) {
	if len(f.below) > 0 && l.atomic() {
		f.member, f.below = true, nil
		return
	}
	for i := range f.below {
		if below := l.step(f.below[i].element); below != nil {
			f.below[i].gather(below)
		}
	}
}
