package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/storage"
)

// form returns the form of the response to a request about a kind.
func (s *Server) form(r *request) encoding.Form {
	f := encoding.Form{Output: r.out, Resource: r.res, Clock: s.Clock}
	if f.View == encoding.ViewTable {
		f.IncludeObject = metav1.IncludeObjectPolicy(r.query.Get("includeObject"))
	}
	return f
}

// hasTable reports whether the response can be a Table. The response to a kind or subresource that can only be created
// cannot.
func (r *request) hasTable() bool {
	return !r.res.CreateOnly && (r.verb != "create" || r.subresource == "")
}

// writeObject answers with one document in the negotiated form. JSON is sent as it is stored.
func (s *Server) writeObject(w http.ResponseWriter, r *request, code int, o *storage.Object) error {
	form := s.form(r)
	if err := r.exchange().Reserve(r.Context(), form.ObjectMemory(len(o.JSON))); err != nil {
		return err
	}
	return s.sendObject(w, r, form, code, o)
}

// sendObject implements writeObject for a request that has reserved the memory.
func (s *Server) sendObject(w http.ResponseWriter, r *request, form encoding.Form, code int, o *storage.Object) error {
	timer := r.audit().Begin(audit.Serialization)
	body, err := form.Object(r.Context(), o)
	timer.End()
	if err != nil {
		return err
	}
	if r.audit().Responses() {
		s.auditResponse(r, o)
	}
	return s.writeBody(w, r.Request, r.out, code, body)
}

// writeBody sends a body. JSON is encoded in the negotiated media type; other bodies are sent unchanged.
func (s *Server) writeBody(w http.ResponseWriter, r *http.Request, out encoding.Output, code int, body []byte) error {
	body, end, err := out.Body(body)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", out.Media)
	h.Set("Cache-Control", "no-cache, private")
	exchangeOf(r.Context()).WriteBody(w, code, out.Gzip, body, end)
	return nil
}

// writeJSON answers with a value that is not a stored document, indented.
func (s *Server) writeJSON(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the response: %w", err)
	}
	out := encoding.Output{Media: encoding.MediaJSON, Pretty: true, Gzip: encoding.AcceptsGzip(r.Header)}
	return s.writeBody(w, r, out, http.StatusOK, body)
}

// wantsPretty reports whether JSON is indented in the response to a request, which need not be about a resource.
func wantsPretty(r *http.Request) bool {
	if resource := exchangeOf(r.Context()).request; resource != nil {
		return encoding.WantsPretty(r.Header, resource.query)
	}
	return encoding.WantsPretty(r.Header, r.URL.Query())
}
