package apiserver

import (
	"context"
	"errors"
	"net/http"

	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/storage"
)

// list answers a LIST, by the contract of resourceVersion and resourceVersionMatch:
// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-get-and-list
func (s *Server) list(w http.ResponseWriter, r *request) error {
	q, err := s.listRequest(r)
	if err != nil {
		return err
	}
	out := r.listWriter(w)
	defer out.Close()
	l, err := s.listed(r, q, out)
	if err != nil {
		return err
	}
	return s.writeList(r, l, out)
}

// listed lists the objects that the request's selectors select. Field selectors on objects that a webhook converts are
// applied to the converted objects, so that a page of them may be shorter than its limit.
func (s *Server) listed(r *request, q storage.ListRequest, out *responsewriter.List) (*storage.List, error) {
	match, err := query.Converted(r.query, r.res)
	if err != nil {
		return nil, err
	}
	l, err := s.selectObjects(r, q, out)
	if err != nil || match == nil {
		return l, err
	}
	docs, err := encoding.ConvertDocuments(r.Context(), r.res, l.Items)
	if err != nil {
		return nil, err
	}
	selected := *l
	selected.Items, selected.Remaining = nil, nil
	for i, o := range l.Items {
		if match(docs[i]) {
			selected.Items = append(selected.Items, o)
		}
	}
	return &selected, nil
}

// selectObjects reads a list, and reserves the memory for encoding it.
func (s *Server) selectObjects(r *request, q storage.ListRequest, out *responsewriter.List) (*storage.List, error) {
	ctx := r.Context()
	visits := r.objects.Visits(&q)
	if err := out.BeginSelection(ctx, visits); err != nil {
		return nil, err
	}
	defer out.EndSelection()
	ended := func() error { return nil }
	if visits >= responsewriter.LongList {
		ended = endWith(ctx, &q.Scope)
	}
	q.Held = func(bytes int) error { return out.ReserveHistory(ctx, bytes) }
	l, err := r.objects.List(ctx, q)
	if err := errors.Join(err, ended()); err != nil {
		return nil, err
	}
	form := s.form(r)
	return l, out.ReserveItems(ctx, &form, l.Items)
}

// endWith makes the selector of a list return false for all objects once ctx has ended. ended then returns the error of
// ctx; it is called after the list.
func endWith(ctx context.Context, scope *storage.Scope) (ended func() error) {
	match := scope.Match
	if match == nil {
		return func() error { return nil }
	}
	var err error
	n := 0
	scope.Match = func(o *storage.Object) bool {
		if n++; n%256 == 0 && err == nil {
			err = ctx.Err()
		}
		return err == nil && match(o)
	}
	return func() error { return err }
}

// listRequest reads the parameters of a list.
func (s *Server) listRequest(r *request) (storage.ListRequest, error) {
	q := storage.ListRequest{Continue: r.query.Get("continue")}
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

// past returns the check that the store makes before a request reads an earlier revision; nil if the request may read
// all revisions.
//
// The past of a namespace begins with its creation. Rights in a namespace are rights in the current namespace of that
// name; at an earlier revision they would disclose the objects of a deleted namespace of the same name. A request for
// all namespaces was authorized for all of them and may read all revisions, even if its selectors name one namespace.
func (s *Server) past(r *request) func(context.Context, int64) error {
	name, kind := r.namespace, s.cluster.Resource(corev1.Resource("namespaces"))
	if r.isNamespace() {
		name = r.name // as in attributesOf
	}
	if name == "" || kind == nil {
		return nil
	}
	return func(ctx context.Context, revision int64) error {
		return s.collection(kind).SameSince(ctx, "", name, revision)
	}
}

// listWriter returns the writer for a list that answers the request.
func (r *request) listWriter(w http.ResponseWriter) *responsewriter.List {
	return r.exchange().List(w, r.out.Media, r.out.Gzip)
}

// writeList answers with a list. Its items are encoded while the list is sent.
func (s *Server) writeList(r *request, l *storage.List, out *responsewriter.List) error {
	ctx, form := r.Context(), s.form(r)
	if err := out.BeginEncoding(ctx, len(l.Items), r.res.WebhookConverted); err != nil {
		return err
	}
	body, err := form.List(ctx, l, out.Whole)
	if err != nil {
		return err
	}
	if r.audit().Responses() {
		s.auditList(r, l)
	}
	out.BeginBody(body.Size)
	out.AppendBytes(body.AppendHead)
	for i := range body.Len {
		err := out.Append(ctx, func(buf []byte) ([]byte, error) { return body.AppendItem(ctx, buf, i) })
		if err != nil {
			return err
		}
	}
	out.AppendBytes(body.AppendTail)
	out.Flush()
	return nil
}
