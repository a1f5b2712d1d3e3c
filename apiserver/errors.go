package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/apiserver/status"
)

func notFoundPath() error { return status.NotServed() }

// statusOf returns the Status with which Kubernetes would answer an error.
func statusOf(err error, r *request) metav1.Status {
	var subject status.Subject
	if r != nil && r.res != nil {
		subject = status.Subject{Resource: r.res.GroupResource(), Name: r.name, Watch: r.verb == "watch"}
	}
	return status.Of(err, subject)
}

// writeError answers with a metav1.Status. A response that has begun is cut off instead.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	e := exchangeOf(r.Context())
	answer := statusOf(err, e.request)
	// An error because the client has closed the connection is not a failure of the server.
	closed := errors.Is(r.Context().Err(), context.Canceled)
	if answer.Code >= http.StatusInternalServerError && !closed {
		s.Log.Error("failed to serve a request", "method", r.Method, "path", r.URL.Path, "code", answer.Code,
			"err", err)
	}
	if status.SelfDefense(err) {
		s.metrics.Terminated(e.labels, int(answer.Code))
	}
	if e.Code() != 0 {
		panic(http.ErrAbortHandler)
	}
	if answer.Details != nil && answer.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(answer.Details.RetryAfterSeconds)))
	}
	if e.write != nil {
		responsewriter.AddWarnings(w.Header(), e.write.warnings)
	}
	_ = s.writeStatus(w, r, answer)
}

// writeStatus answers with a Status, in the client's format if that is a format for objects.
func (s *Server) writeStatus(w http.ResponseWriter, r *http.Request, answer metav1.Status) error {
	answer.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	exchangeOf(r.Context()).Audit().Status(&answer)
	code := int(answer.Code)
	if code == 0 {
		code = http.StatusOK
	}
	out := encoding.Output{Media: encoding.NegotiateStatus(r.Header.Get("Accept")), Pretty: wantsPretty(r)}
	body, err := out.Value("v1", "Status", &answer)
	if err != nil {
		return fmt.Errorf("encode a status: %w", err)
	}
	return s.writeBody(w, r, out, code, body)
}
