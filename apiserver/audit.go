package apiserver

import (
	"encoding/json"
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

// audited records requests in the audit log. It comes after authentication, which records rejected credentials itself
// (auditUnauthenticated), and before every other step that may reject a request.
func (s *Server) audited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		record := s.beginAudit(w, r, authn.UserFrom(r.Context()))
		if record == nil {
			next.ServeHTTP(w, r)
			return
		}
		if !record.Receive() {
			s.writeError(w, r, apierrors.NewInternalError(audit.ErrStore))
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

// beginAudit begins the record of a request, nil if it is not recorded. It applies the audit policy to attributes that
// are read from the path alone, since the route has not been resolved yet.
func (s *Server) beginAudit(w http.ResponseWriter, r *http.Request, user *authn.User) *audit.Request {
	a, err := aggregation.Attributes(r, user)
	if err != nil { // a path below /watch or /proxy that leads nowhere
		a = authz.Attributes{User: user, Path: r.URL.Path}
	}
	switch {
	case a.Path != "":
		a.Verb = strings.ToLower(r.Method)
	case r.URL.RawQuery != "" && (a.Verb == "list" || a.Verb == "watch"):
		// The parameters are parsed as for the verb, so that no spelling evades a rule for watches or names.
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

// auditUnauthenticated records a request whose credential was rejected.
func (s *Server) auditUnauthenticated(w http.ResponseWriter, r *http.Request) {
	if s.Audit != nil {
		s.beginAudit(w, r, nil).Unauthenticated("Authentication failed, " + audit.Attempted(r))
	}
}

// auditBody records the body of the request, as JSON.
func (r *request) auditBody(doc []byte) {
	r.audit().RequestBody(r.res.Group, r.res.Plural, r.subresource, doc)
}

// auditObject records the object in the body of the request. doc is nil if the body is not JSON.
func (r *request) auditObject(obj runtime.Object, doc []byte) {
	if o, ok := obj.(metav1.Object); ok {
		r.audit().Object(o)
	}
	if doc == nil && r.audit().Bodies() {
		doc, _ = json.Marshal(obj) // an object that came as protobuf
	}
	r.auditBody(doc)
}

// auditResponse records the body of the response, as JSON.
func (r *request) auditResponse(doc []byte) {
	r.audit().ResponseBody(r.res.Group, r.res.Plural, r.subresource, doc)
}

// asJSON returns the form of a response, but encoded as JSON.
func asJSON(out encoding.Output) encoding.Output {
	out.Media, out.Pretty = encoding.MediaJSON, false
	return out
}

// auditResponse records the object in a response.
func (s *Server) auditResponse(r *request, o *storage.Object) {
	form := s.form(r)
	form.Output = asJSON(r.out)
	if doc, err := form.Object(r.Context(), o); err == nil {
		r.auditResponse(doc)
	}
}

// auditList records the list in a response, unless it is too long.
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
