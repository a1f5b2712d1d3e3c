// Package query reads the parameters of requests by Kubernetes' rules, and translates them for the store. The
// parameters of a URL come in; a selection, a revision or an error comes out. selectors.go has label and field
// selectors, options.go the options of writes.
package query

import (
	"fmt"
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/storage"
)

// Flag returns a boolean parameter: it is true if it is present and not "0" or "false".
func Flag(q url.Values, name string) bool {
	v, ok := q[name]
	return ok && v[0] != "0" && v[0] != "false"
}

// Revision returns a resourceVersion parameter, 0 if there is none.
func Revision(q url.Values, name string) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return 0, nil
	}
	revision, err := strconv.ParseInt(text, 10, 64)
	if err != nil || revision < 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid %s %q", name, text))
	}
	return revision, nil
}

// Limit returns the limit of a LIST, 0 for none.
func Limit(q url.Values) (int64, error) {
	text := q.Get("limit")
	if text == "" {
		return 0, nil
	}
	limit, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid limit %q", text))
	}
	return max(limit, 0), nil // a negative limit is none
}

// At returns the revision of a LIST with a limit, from resourceVersion, resourceVersionMatch and continue:
// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list
func At(q url.Values, limit int64) (storage.At, error) {
	text, match := q.Get("resourceVersion"), metav1.ResourceVersionMatch(q.Get("resourceVersionMatch"))
	token := q.Get("continue")
	revision, err := Revision(q, "resourceVersion")
	if err != nil {
		return storage.At{}, err
	}
	switch {
	case token != "" && revision != 0:
		return storage.At{}, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	case token != "":
		return storage.At{}, nil
	case match == metav1.ResourceVersionMatchExact:
		return storage.At{Revision: revision, Exact: true}, nil
	case text == "0":
		return storage.At{Any: true}, nil
	case match == "" && limit > 0 && revision > 0:
		// Without resourceVersionMatch, a limited list at a revision is an exact one.
		return storage.At{Revision: revision, Exact: true}, nil
	}
	return storage.At{Revision: revision}, nil
}

// CheckList rejects malformed and contradictory parameters of a LIST, a WATCH or the deletion of a collection.
func CheckList(q url.Values, watch bool) error {
	if err := metav1.Convert_url_Values_To_v1_ListOptions(&q, &metav1.ListOptions{}, nil); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	o := &internalversion.ListOptions{
		Watch:                watch,
		ResourceVersion:      q.Get("resourceVersion"),
		ResourceVersionMatch: metav1.ResourceVersionMatch(q.Get("resourceVersionMatch")),
		Continue:             q.Get("continue"),
	}
	if q.Has("sendInitialEvents") {
		send := Flag(q, "sendInitialEvents")
		o.SendInitialEvents = &send
	}
	return Invalid("ListOptions", validation.ValidateListOptions(o, true))
}
