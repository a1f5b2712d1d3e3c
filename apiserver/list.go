package apiserver

import (
	"context"
	"errors"
	"net/http"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/storage"
)

// list answers a LIST, by the contract of resourceVersion and resourceVersionMatch:
// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list
func (s *Server) list(w http.ResponseWriter, r *request) error {
	q, err := s.listRequest(r)
	if err != nil {
		return err
	}
	l, err := s.listed(r, q)
	if err != nil {
		return err
	}
	return s.writeList(w, r, l)
}

// listed lists the objects that the request's selectors choose. A page of objects that another server converts may have
// fewer than its limit: those that their fields in the request's version exclude.
func (s *Server) listed(r *request, q storage.ListRequest) (*storage.List, error) {
	match, err := query.Converted(r.query, r.res)
	if err != nil {
		return nil, err
	}
	l, err := s.selectObjects(r, q)
	if err != nil || match == nil {
		return l, err
	}
	docs, err := encoding.ConvertDocuments(r.Context(), r.res, l.Items)
	if err != nil {
		return nil, err
	}
	chosen := *l
	chosen.Items, chosen.Remaining = nil, nil
	for i, o := range l.Items {
		if match(docs[i]) {
			chosen.Items = append(chosen.Items, o)
		}
	}
	return &chosen, nil
}

// selectObjects reads a list, and charges the memory that it takes. Selecting among many objects ends with the request.
func (s *Server) selectObjects(r *request, q storage.ListRequest) (*storage.List, error) {
	turn := turn{s: s, r: r}
	if n := r.objects.Visits(&q); n >= longList {
		turn.needed = true
		if err := r.charge(int64(n) * pointer); err != nil {
			return nil, err
		}
	}
	if err := turn.take(r.Context()); err != nil {
		return nil, err
	}
	defer turn.leave()
	ended := func() error { return nil }
	if turn.needed {
		ended = selected(r.Context(), &q.Scope)
	}
	l, err := r.objects.List(r.Context(), q)
	if err := errors.Join(err, ended()); err != nil {
		return nil, err
	}
	form := s.form(r)
	memory := r.listMemory(&form, l.Items)
	if r.memory.Try(memory) {
		return l, nil
	}
	turn.leave() // to another list, which may give memory back when it has had its turn
	return l, r.charge(memory)
}

func (s *Server) listRequest(r *request) (storage.ListRequest, error) {
	q := storage.ListRequest{Continue: r.query.Get("continue"), Held: r.holdPast}
	err := query.CheckList(r.query, r.verb == "watch")
	if err != nil {
		return q, err
	}
	if q.Scope, err = r.scope(); err != nil {
		return q, err
	}
	if q.Limit, err = query.Limit(r.query); err != nil {
		return q, err
	}
	if q.At, err = query.At(r.query, q.Limit); q.At.Exact || q.Continue != "" {
		q.Scope.Past = s.past(r)
	}
	return q, err
}

// past returns the check that the store makes before a request reads the past; nil if it may read all of it.
//
// The past of a namespace begins with its creation. Rights in a namespace are rights in the one that has the
// name now; at an earlier revision they would disclose the objects of its predecessor. A request about all
// namespaces was authorized for all of them and may read everything, whatever its selectors.
func (s *Server) past(r *request) func(context.Context, int64) error {
	name, kind := r.namespace, s.cluster.Resource(corev1.Resource("namespaces"))
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
