package status_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver/status"
	"github.com/coxswain-dev/coxswain/storage"
)

func TestOf_AnswersAsKubernetesDoes(t *testing.T) {
	t.Parallel()
	pods := schema.GroupResource{Resource: "pods"}
	subject := status.Subject{Resource: pods, Name: "web"}
	for _, c := range []struct {
		err    error
		code   int
		reason metav1.StatusReason
		words  string
	}{
		{&storage.Conflict{}, http.StatusConflict, metav1.StatusReasonConflict, `pods "web": the object has been modified`},
		{storage.ErrNotFound, http.StatusNotFound, metav1.StatusReasonNotFound, `pods "web" not found`},
		{storage.ErrExists, http.StatusConflict, metav1.StatusReasonAlreadyExists, `pods "web" already exists`},
		{storage.ErrExpired, http.StatusGone, metav1.StatusReasonExpired, "provided list is too old"},
		{&storage.StaleToken{Continue: "next"}, http.StatusGone, metav1.StatusReasonExpired, "continue parameter is too old"},
		{storage.ErrBadToken, http.StatusBadRequest, metav1.StatusReasonBadRequest, "continue key is not valid"},
		{storage.ErrFuture, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "Too large resource version"},
		{storage.ErrTooLarge, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge, ""},
		{storage.ErrNoSpace, http.StatusInsufficientStorage, metav1.StatusReasonInternalError, ""},
		{storage.ErrUnknownOutcome, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "may or may not have happened"},
		{storage.ErrUnavailable, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, ""},
		{context.DeadlineExceeded, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "allotted timeout"},
		{context.Canceled, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "allotted timeout"},
		{errors.New("odd"), http.StatusInternalServerError, metav1.StatusReasonInternalError, "odd"},
		{apierrors.NewBadRequest("as it is"), http.StatusBadRequest, metav1.StatusReasonBadRequest, "as it is"},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			s := status.Of(err, subject)
			require.EqualValues(t, c.code, s.Code, "%v", err)
			require.Equal(t, c.reason, s.Reason, "%v", err)
			require.Equal(t, metav1.StatusFailure, s.Status, "%v", err)
			require.Contains(t, s.Message, c.words, "%v", err)
		}
	}
	require.Equal(t, "next", status.Of(&storage.StaleToken{Continue: "next"}, subject).Continue)
	require.Contains(t, status.Of(storage.ErrExpired, status.Subject{Watch: true}).Message, "provided watch is too old")
}

// client-go repeats what has a Retry-After. A write that may have happened must not be repeated without its author.
func TestOf_UnknownOutcomeIsNotRetried(t *testing.T) {
	t.Parallel()
	s := status.Of(fmt.Errorf("wrapped: %w", storage.ErrUnknownOutcome), status.Subject{})
	require.Zero(t, s.Details.RetryAfterSeconds)
}

func TestSelfDefense_IsTheServersOwn(t *testing.T) {
	t.Parallel()
	for _, err := range []error{status.TooManyRequests(), context.DeadlineExceeded} {
		require.True(t, status.SelfDefense(fmt.Errorf("wrapped: %w", err)))
	}
	for _, err := range []error{apierrors.NewTooManyRequests("disruption budget", 0), storage.ErrFuture,
		apierrors.NewTimeoutError("a webhook's", 1), context.Canceled} {
		require.False(t, status.SelfDefense(err), "%v", err)
	}
	require.True(t, apierrors.IsTooManyRequests(status.TooManyRequests()))
}

func TestOn_NamesAnotherObject(t *testing.T) {
	t.Parallel()
	nodes := schema.GroupResource{Resource: "nodes"}
	err := status.On(storage.ErrNotFound, nodes, "n1")
	require.ErrorIs(t, err, storage.ErrNotFound)
	s := status.Of(err, status.Subject{Resource: schema.GroupResource{Resource: "pods"}, Name: "web"})
	require.Equal(t, `nodes "n1" not found`, s.Message)
	require.Equal(t, &metav1.StatusDetails{Name: "n1", Kind: "nodes"}, s.Details)
}
