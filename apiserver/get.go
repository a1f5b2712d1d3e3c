package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/storage"
)

// get answers a GET of one object or of a subresource that shows it.
func (s *Server) get(w http.ResponseWriter, r *request) error {
	revision, err := r.revision("resourceVersion")
	if err != nil {
		return err
	}
	at := storage.At{Any: r.query.Get("resourceVersion") == "0", Revision: revision}
	o, err := r.objects.Get(r.Context(), r.namespace, r.name, at)
	if err != nil {
		return err
	}
	if r.subresource == "scale" {
		return s.getScale(w, r, o)
	}
	return s.writeObject(w, r, http.StatusOK, o)
}

// list answers a LIST, by the contract of resourceVersion and resourceVersionMatch:
// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list
func (s *Server) list(w http.ResponseWriter, r *request) error {
	q, err := s.listRequest(r)
	if err != nil {
		return err
	}
	l, err := r.objects.List(r.Context(), q)
	if err != nil {
		return err
	}
	return s.writeList(w, r, l)
}

func (s *Server) listRequest(r *request) (storage.ListRequest, error) {
	q := storage.ListRequest{Continue: r.query.Get("continue")}
	err := r.checkListOptions()
	if err != nil {
		return q, err
	}
	if q.Scope, err = r.scope(); err != nil {
		return q, err
	}
	if text := r.query.Get("limit"); text != "" {
		if q.Limit, err = strconv.ParseInt(text, 10, 64); err != nil {
			return q, apierrors.NewBadRequest(fmt.Sprintf("invalid limit %q", text))
		}
		q.Limit = max(q.Limit, 0) // less than none is none
	}
	if q.At, err = r.at(q.Limit, q.Continue); q.At.Exact || q.Continue != "" {
		q.Scope.Past = s.past(r)
	}
	return q, err
}

// past is what the store asks before a request reads the past; nil where all of it may be read.
//
// The past of a namespace begins with its creation. Rights in a namespace are rights in the one that has the
// name now; at a revision from before, they would open what the last one of that name held. A request about
// all namespaces was authorized for all of them, and may read what there is, however it is narrowed down.
func (s *Server) past(r *request) func(context.Context, int64) error {
	name, kind := r.namespace, s.cluster.resource(corev1.Resource("namespaces"))
	if r.isNamespace() {
		name = r.name // as for authorization
	}
	if name == "" || kind == nil {
		return nil
	}
	return func(ctx context.Context, revision int64) error {
		return s.collection(kind).SameSince(ctx, "", name, revision)
	}
}

// at reads resourceVersion and resourceVersionMatch of a LIST.
func (r *request) at(limit int64, token string) (storage.At, error) {
	text, match := r.query.Get("resourceVersion"), metav1.ResourceVersionMatch(r.query.Get("resourceVersionMatch"))
	revision, err := r.revision("resourceVersion")
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

// checkListOptions refuses combinations of the parameters of a LIST or WATCH that make no
// sense.
func (r *request) checkListOptions() error {
	o := &internalversion.ListOptions{
		Watch:                r.verb == "watch",
		ResourceVersion:      r.query.Get("resourceVersion"),
		ResourceVersionMatch: metav1.ResourceVersionMatch(r.query.Get("resourceVersionMatch")),
		Continue:             r.query.Get("continue"),
	}
	if r.query.Has("sendInitialEvents") {
		send := flag(r.query, "sendInitialEvents")
		o.SendInitialEvents = &send
	}
	if errs := validation.ValidateListOptions(o, true); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	return nil
}

// revision reads a resourceVersion parameter; 0 when there is none.
func (r *request) revision(name string) (int64, error) {
	text := r.query.Get(name)
	if text == "" {
		return 0, nil
	}
	revision, err := strconv.ParseInt(text, 10, 64)
	if err != nil || revision < 0 {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid %s %q", name, text))
	}
	return revision, nil
}
