package apiserver

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/apiserver/aggregation"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/storage"
)

// audited records what becomes of requests. It comes after authentication, which has an event of its own for a refused
// credential, and before all else that may refuse a request.
func (s *Server) audited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		record := s.beginAudit(w, r, authn.UserFrom(r.Context()))
		if record == nil {
			next.ServeHTTP(w, r)
			return
		}
		if !record.Receive() {
			s.writeError(w, r, apierrors.NewInternalError(errors.New("failed to store audit event")))
			return
		}
		exchangeOf(r.Context()).Record(record)
		defer func() {
			if p := recover(); p != nil {
				record.Panic(p)
				panic(p)
			}
			record.Complete()
		}()
		next.ServeHTTP(w, r)
	})
}

// beginAudit decides about a request by its path: what it is about is not known yet. The result is nil if it is not
// recorded.
func (s *Server) beginAudit(w http.ResponseWriter, r *http.Request, user *authn.User) *audit.Request {
	a, err := aggregation.Attributes(r, user)
	if err != nil { // a path below /watch or /proxy that leads nowhere
		a = authz.Attributes{User: user, Path: r.URL.Path}
	}
	switch {
	case a.Path != "":
		a.Verb = strings.ToLower(r.Method)
	case r.URL.RawQuery != "" && (a.Verb == "list" || a.Verb == "watch"):
		// However a parameter is spelled, a rule for watches, or for names, must not be evaded.
		params := r.URL.Query()
		if query.Flag(params, "watch") {
			a.Verb = "watch"
		}
		addSelectors(&a, params)
	}
	e := exchangeOf(r.Context())
	record := s.Audit.Begin(r, &a, e.start, e.long)
	if record != nil {
		w.Header()[audit.HeaderID] = []string{record.ID()}
	}
	return record
}

// auditUnauthenticated records a request whose credential was refused.
func (s *Server) auditUnauthenticated(w http.ResponseWriter, r *http.Request) {
	if s.Audit != nil {
		s.beginAudit(w, r, nil).Unauthenticated("Authentication failed, " + audit.Attempted(r))
	}
}

// auditBody notes the body of a request, as JSON.
func (r *request) auditBody(doc []byte) {
	r.audit().RequestBody(r.res.Group, r.res.Plural, r.subresource, doc)
}

// auditObject notes the object in the body of a request. doc is nil if it is not JSON.
func (r *request) auditObject(obj runtime.Object, doc []byte) {
	if o, ok := obj.(metav1.Object); ok {
		r.audit().Object(o)
	}
	if doc == nil && r.audit().Bodies() {
		doc, _ = json.Marshal(obj) // an object that came as protobuf
	}
	r.auditBody(doc)
}

// auditResponse notes the body of a response, as JSON.
func (r *request) auditResponse(doc []byte) {
	r.audit().ResponseBody(r.res.Group, r.res.Plural, r.subresource, doc)
}

// asJSON is the form of a response, with JSON in the place of another encoding.
func asJSON(out encoding.Output) encoding.Output {
	out.Media, out.Pretty = encoding.MediaJSON, false
	return out
}

// auditResponse notes the object that a response shows.
func (s *Server) auditResponse(r *request, o *storage.Object) {
	form := s.form(r)
	form.Output = asJSON(r.out)
	if doc, err := form.Object(r.Context(), o); err == nil {
		r.auditResponse(doc)
	}
}

// auditList notes the list that a response shows, unless it is too long to be recorded.
func (s *Server) auditList(r *request, l *storage.List) {
	form := s.form(r)
	form.Output = asJSON(r.out)
	body, err := form.List(r.Context(), l, nil)
	if err != nil || body.Size >= 0 && r.audit().TooLarge(body.Size) {
		return
	}
	doc := body.AppendHead(nil)
	for i := range body.Len {
		if doc, err = body.AppendItem(r.Context(), doc, i); err != nil || r.audit().TooLarge(len(doc)) {
			return
		}
	}
	r.auditResponse(body.AppendTail(doc))
}
