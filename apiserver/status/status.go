// Package status turns errors into the metav1.Status that a client receives. The errors are from storage and all other
// packages below the server. Codes, reasons and messages are kube-apiserver's, because clients look for them.
package status

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/storage"
)

// Error returns a failure's Status as an error, if package k8s.io/apimachinery/pkg/api/errors has no function for it.
func Error(code int, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}}
}

// NotServed returns the answer to a request for a path or a kind that does not exist.
func NotServed() error {
	return Error(http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
}

// TooManyRequests returns the answer to a request that the server has no room for: the client asks again in a second.
func TooManyRequests() error {
	return busyError{apierrors.NewTooManyRequests("Too many requests, please try again later.", 1)}
}

// busyError distinguishes the server's own 429 from an eviction's or a webhook's.
type busyError struct{ *apierrors.StatusError }

// SelfDefense reports whether the server ended a request to protect itself: it had no room, or the time was over.
func SelfDefense(err error) bool {
	var busy busyError
	return errors.As(err, &busy) || errors.Is(err, context.DeadlineExceeded)
}

// ErrModified is the answer to a write that is based on an older revision.
var ErrModified = errors.New(
	"the object has been modified; please apply your changes to the latest version and try again")

// kube-apiserver's words when the past is gone.
const (
	expiredList  = "The resourceVersion for the provided list is too old."
	expiredWatch = "The resourceVersion for the provided watch is too old."
	expiredToken = "The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to " +
		"retrieve " +
		"the remainder of the results. Continuing with the provided token results in an inconsistent list - " +
		"objects that " +
		"were created, modified, or deleted between the time the first chunk was returned and now may show up in " +
		"the list."
)

// Subject is the object, or the objects, that a request is about.
type Subject struct {
	Resource schema.GroupResource
	Name     string
	// Watch reports whether the request is a watch.
	Watch bool
}

// objectError is an error about an object that the request's path does not name.
type objectError struct {
	error
	resource schema.GroupResource
	name     string
}

func (e *objectError) Unwrap() error { return e.error }

// On returns err as one about another object than the request's Subject.
func On(err error, resource schema.GroupResource, name string) error {
	return &objectError{error: err, resource: resource, name: name}
}

// Of turns any error into the Status that Kubernetes would answer. An error that is a Status already stays as it is.
func Of(err error, subject Subject) metav1.Status {
	var asStatus apierrors.APIStatus
	if errors.As(err, &asStatus) {
		return asStatus.Status()
	}
	gr, name := subject.Resource, subject.Name
	var on *objectError
	if errors.As(err, &on) {
		gr, name = on.resource, on.name
	}
	var conflict *storage.Conflict
	var stale *storage.StaleToken
	var future *apierrors.StatusError
	var damaged *storage.Damaged
	switch {
	case errors.As(err, &damaged) && subject.Name == "" && !subject.Watch:
		return unreadable(gr, damaged)
	case errors.As(err, &damaged):
		return apierrors.NewInternalError(err).Status()
	case errors.As(err, &conflict):
		return apierrors.NewConflict(gr, name, ErrModified).Status()
	case errors.Is(err, storage.ErrNotFound):
		return apierrors.NewNotFound(gr, name).Status()
	case errors.Is(err, storage.ErrExists):
		return apierrors.NewAlreadyExists(gr, name).Status()
	case errors.As(err, &stale):
		expired := apierrors.NewResourceExpired(expiredToken)
		expired.ErrStatus.ListMeta.Continue = stale.Continue
		return expired.Status()
	case errors.Is(err, storage.ErrExpired):
		if subject.Watch {
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
		return Error(http.StatusInsufficientStorage, metav1.StatusReasonInternalError,
			err.Error()).(apierrors.APIStatus).Status()
	case errors.Is(err, storage.ErrUnknownOutcome):
		// There is no Retry-After: client-go would send the write again by itself and report AlreadyExists for an
		// object that its own first request created, or create a second one by generateName.
		return apierrors.NewTimeoutError(
			"the write was sent to etcd and no answer came; it may or may not have happened", 0).Status()
	case errors.Is(err, storage.ErrUnavailable):
		return apierrors.NewServiceUnavailable(err.Error()).Status()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).Status()
	}
	return apierrors.NewInternalError(err).Status()
}

// unreadable returns the answer to a list that contains an object which cannot be read.
func unreadable(gr schema.GroupResource, damaged *storage.Damaged) metav1.Status {
	return metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Message: fmt.Sprintf("failed to read one or more %s from the storage: %v", gr, damaged),
		Details: &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource, Causes: []metav1.StatusCause{{
			Type: metav1.CauseTypeUnexpectedServerResponse, Field: damaged.Key.String(), Message: damaged.Err.Error(),
		}}},
	}
}
