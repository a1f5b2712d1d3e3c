package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/storage"
)

// statusError is a metav1.Status as an error.
func statusError(code int, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}}
}

func notFoundPath() error {
	return statusError(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
}

// errModified is what a writer is told who had read an older revision.
var errModified = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// What kube-apiserver answers when the past is gone. Clients look for these words.
const (
	expiredList  = "The resourceVersion for the provided list is too old."
	expiredWatch = "The resourceVersion for the provided watch is too old."
	expiredToken = "The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to retrieve " +
		"the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that " +
		"were created, modified, or deleted between the time the first chunk was returned and now may show up in the list."
)

// statusOf turns any error into the Status that Kubernetes would answer.
func statusOf(err error, r *request) metav1.Status {
	var asStatus apierrors.APIStatus
	if errors.As(err, &asStatus) {
		return asStatus.Status()
	}
	gr, name := metav1.Unversioned.WithResource("").GroupResource(), ""
	if r != nil && r.res != nil {
		gr, name = r.res.GroupResource(), r.name
	}
	var conflict *storage.Conflict
	var stale *storage.StaleToken
	var future *apierrors.StatusError
	switch {
	case errors.As(err, &conflict):
		return apierrors.NewConflict(gr, name, errModified).Status()
	case errors.Is(err, storage.ErrNotFound):
		return apierrors.NewNotFound(gr, name).Status()
	case errors.Is(err, storage.ErrExists):
		return apierrors.NewAlreadyExists(gr, name).Status()
	case errors.As(err, &stale):
		expired := apierrors.NewResourceExpired(expiredToken)
		expired.ErrStatus.ListMeta.Continue = stale.Continue
		return expired.Status()
	case errors.Is(err, storage.ErrExpired):
		if r != nil && r.verb == "watch" {
			return apierrors.NewResourceExpired(expiredWatch).Status()
		}
		return apierrors.NewResourceExpired(expiredList).Status()
	case errors.Is(err, storage.ErrBadToken):
		return apierrors.NewBadRequest("continue key is not valid: " + err.Error()).Status()
	case errors.Is(err, storage.ErrFuture):
		future = apierrors.NewTimeoutError("Too large resource version: "+err.Error(), 1)
		future.ErrStatus.Details.Causes = []metav1.StatusCause{{
			Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version",
		}}
		return future.Status()
	case errors.Is(err, storage.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(err.Error()).Status()
	case errors.Is(err, storage.ErrNoSpace):
		return statusError(http.StatusInsufficientStorage, metav1.StatusReasonInternalError, err.Error()).(apierrors.APIStatus).Status()
	case errors.Is(err, storage.ErrUnknownOutcome):
		return apierrors.NewTimeoutError("the write was sent to etcd and no answer came; it may or may not have happened", 1).Status()
	case errors.Is(err, storage.ErrUnavailable):
		return apierrors.NewServiceUnavailable(err.Error()).Status()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).Status()
	}
	return apierrors.NewInternalError(err).Status()
}

// writeError answers with a metav1.Status. A response that has begun is cut off instead.
func (s *Server) writeError(w http.ResponseWriter, r *request, err error) {
	status := statusOf(err, r)
	// What failed because the client has left is no failure of the server.
	if gone := errors.Is(r.Context().Err(), context.Canceled); status.Code >= http.StatusInternalServerError && !gone {
		s.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "code", status.Code, "error", err)
	}
	if observed(w).code != 0 {
		panic(http.ErrAbortHandler)
	}
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	_ = s.writeStatus(w, r, status)
}

// writeStatus answers with a Status, in the client's format where that is one for objects.
func (s *Server) writeStatus(w http.ResponseWriter, r *request, status metav1.Status) error {
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	code := int(status.Code)
	if code == 0 {
		code = http.StatusOK
	}
	out := output{media: negotiateStatus(r.Header.Get("Accept")), pretty: wantsPretty(r)}
	body, err := json.Marshal(&status)
	if out.media == mediaProtobuf {
		body, err = wrapProtobuf("v1", "Status", &status)
	}
	if err != nil {
		return fmt.Errorf("encoding a status: %w", err)
	}
	return s.writeBody(w, out, code, body)
}
