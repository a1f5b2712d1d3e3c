package apiserver

import (
	"cmp"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/coxswain-dev/coxswain/storage"
)

// scope turns the path and the label and field selectors into what the store narrows by.
// Equality on the name, the namespace and the kind's indexed field is cheap there; the
// rest becomes a Match.
func (r *request) scope() (storage.Scope, error) {
	sc := storage.Scope{Namespace: r.namespace}
	matchLabels, err := r.labelMatch()
	if err != nil {
		return sc, err
	}
	matchFields, err := r.fieldMatch(&sc)
	if err != nil {
		return sc, err
	}
	switch {
	case matchLabels == nil:
		sc.Match = matchFields
	case matchFields == nil:
		sc.Match = matchLabels
	default:
		sc.Match = func(o *storage.Object) bool { return matchFields(o) && matchLabels(o) }
	}
	return sc, nil
}

func (r *request) labelMatch() (func(*storage.Object) bool, error) {
	text := r.query.Get("labelSelector")
	if text == "" {
		return nil, nil
	}
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if selector.Empty() {
		return nil, nil
	}
	return func(o *storage.Object) bool { return selector.Matches(o.Labels) }, nil
}

func (r *request) fieldMatch(sc *storage.Scope) (func(*storage.Object) bool, error) {
	text := r.query.Get("fieldSelector")
	if text == "" {
		return nil, nil
	}
	selector, err := fields.ParseSelector(text)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var tests []func(*storage.Object) bool
	for _, q := range selector.Requirements() {
		equal := q.Operator != selection.NotEquals
		if equal && narrow(&q.Value, q.Field, r, sc) {
			continue
		}
		value, err := r.field(q.Field)
		if err != nil {
			return nil, err
		}
		want := q.Value
		tests = append(tests, func(o *storage.Object) bool { return (value(o) == want) == equal })
	}
	if len(tests) == 0 {
		return nil, nil
	}
	return func(o *storage.Object) bool {
		return !slices.ContainsFunc(tests, func(t func(*storage.Object) bool) bool { return !t(o) })
	}, nil
}

// narrow uses an equality where the store has an index for it. It reports false where the
// requirement must be tested: no index, or one that is narrowed already.
func narrow(value *string, field string, r *request, sc *storage.Scope) bool {
	var slot *string
	switch field {
	case "metadata.name":
		slot = &sc.Name
	case "metadata.namespace":
		slot = &sc.Namespace
	case r.res.FieldIndex:
		slot = &sc.IndexValue
	default:
		return false
	}
	if *value == "" || *slot != "" {
		return false
	}
	*slot = *value
	return true
}

// field returns how to read a selectable field of the kind.
func (r *request) field(name string) (func(*storage.Object) string, error) {
	switch name {
	case "metadata.name":
		return func(o *storage.Object) string { return o.Key.Name }, nil
	case "metadata.namespace":
		return func(o *storage.Object) string { return o.Key.Namespace }, nil
	}
	i := slices.Index(r.res.Fields, name)
	if i < 0 {
		if len(r.res.Fields) == 0 {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", name))
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", name))
	}
	zero := r.res.FieldZero[name]
	if r.res.View != nil { // the store knows the fields of the version that it stores
		i = slices.Index(r.res.View.Of.SelectablePaths(), r.res.SelectablePaths()[i])
	}
	return func(o *storage.Object) string { return cmp.Or(o.Fields[i], zero) }, nil
}
