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

// listed lists the objects that the request's selectors choose. A page of objects that another server converts may have
// fewer than its limit: those that their fields in the request's version exclude.
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
	chosen := *l
	chosen.Items, chosen.Remaining = nil, nil
	for i, o := range l.Items {
		if match(docs[i]) {
			chosen.Items = append(chosen.Items, o)
		}
	}
	return &chosen, nil
}

// selectObjects reads a list, and reserves the memory that encoding it takes.
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

// endWith makes a list's selector return false for all objects once ctx has ended. Then ended returns the error of ctx.
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

// listWriter returns the writer for a list that answers the request.
func (r *request) listWriter(w http.ResponseWriter) *responsewriter.List {
	return r.exchange().List(w, r.out.Media, r.out.Gzip)
}

// writeList answers with a list. Its items are encoded while it is sent.
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
