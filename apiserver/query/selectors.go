package query

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// Scope returns the objects of a kind that the label and field selectors choose in a namespace, which is "" for all.
// Equality on the name, the namespace and the kind's indexed field is cheap for the store; the rest becomes a Match.
func Scope(q url.Values, res *api.Resource, namespace string) (storage.Scope, error) {
	sc := storage.Scope{Namespace: namespace}
	matchLabels, err := labelMatch(q.Get("labelSelector"))
	if err != nil {
		return sc, err
	}
	matchFields, err := fieldMatch(q.Get("fieldSelector"), res, &sc)
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

func labelMatch(text string) (func(*storage.Object) bool, error) {
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

func fieldMatch(text string, res *api.Resource, sc *storage.Scope) (func(*storage.Object) bool, error) {
	if text == "" {
		return nil, nil
	}
	selector, err := fields.ParseSelector(text)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var tests tests
	for _, q := range selector.Requirements() {
		equal := q.Operator != selection.NotEquals
		if equal && narrow(&q.Value, q.Field, res, sc) {
			continue
		}
		value, err := selectable(res, q.Field)
		if err != nil {
			return nil, err
		}
		if !ofConverted(res, q.Field) {
			tests.add(value, q.Value, equal)
		}
	}
	return tests.match(), nil
}

// Converted returns the part of the field selector that Scope leaves out: the fields of a kind that another server
// converts. It is tested on documents in the version of the registration. It is nil if there is none.
func Converted(q url.Values, res *api.Resource) (func(*storage.Object) bool, error) {
	if !res.WebhookConverted || q.Get("fieldSelector") == "" {
		return nil, nil
	}
	selector, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var tests tests
	for _, q := range selector.Requirements() {
		if !ofConverted(res, q.Field) {
			continue
		}
		value, err := selectable(res, q.Field)
		if err != nil {
			return nil, err
		}
		tests.add(value, q.Value, q.Operator != selection.NotEquals)
	}
	return tests.match(), nil
}

// ofConverted reports whether a field is known only of a converted document: another version may have it elsewhere.
func ofConverted(res *api.Resource, field string) bool {
	return res.WebhookConverted && slices.Contains(res.Fields, field)
}

// tests are the requirements of a selector.
type tests []func(*storage.Object) bool

func (t *tests) add(value func(*storage.Object) string, want string, equal bool) {
	*t = append(*t, func(o *storage.Object) bool { return (value(o) == want) == equal })
}

// match returns a function that reports whether an object passes all tests, nil if there are none.
func (t tests) match() func(*storage.Object) bool {
	if len(t) == 0 {
		return nil
	}
	return func(o *storage.Object) bool {
		return !slices.ContainsFunc(t, func(test func(*storage.Object) bool) bool { return !test(o) })
	}
}

// narrow uses the store's index for an equality. It returns false if the requirement
// must be tested on each object: there is no index, or it is in use already.
func narrow(value *string, field string, res *api.Resource, sc *storage.Scope) bool {
	var slot *string
	switch field {
	case "metadata.name":
		slot = &sc.Name
	case "metadata.namespace":
		slot = &sc.Namespace
	case res.FieldIndex:
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

// selectable returns a function that reads a selectable field of the kind.
func selectable(res *api.Resource, name string) (func(*storage.Object) string, error) {
	switch name {
	case "metadata.name":
		return func(o *storage.Object) string { return o.Key.Name }, nil
	case "metadata.namespace":
		return func(o *storage.Object) string { return o.Key.Namespace }, nil
	}
	i := slices.Index(res.Fields, name)
	if i < 0 {
		if len(res.Fields) == 0 {
			return nil, apierrors.NewBadRequest(
				fmt.Sprintf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", name))
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", name))
	}
	zero := res.FieldZero[name]
	if res.Conversion != nil && !res.WebhookConverted { // the store knows the fields of the version that it stores
		i = slices.Index(res.Conversion.Stored.SelectablePaths(), res.SelectablePaths()[i])
	}
	return func(o *storage.Object) string { return cmp.Or(o.Fields[i], zero) }, nil
}
