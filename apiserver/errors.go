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

// statusOf turns any error into the Status that Kubernetes would answer to the request.
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
	// A failure because the client has left is not the server's.
	if gone := errors.Is(r.Context().Err(), context.Canceled); answer.Code >= http.StatusInternalServerError && !gone {
		s.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "code", answer.Code, "error", err)
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

// writeStatus answers with a Status, in the client's format where that is one for objects.
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
		return fmt.Errorf("encoding a status: %w", err)
	}
	return s.writeBody(w, r, out, code, body)
}
