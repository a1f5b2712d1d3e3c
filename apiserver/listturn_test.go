package apiserver

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
)

// turnOf is a turn that a list of a user waits for.
func turnOf(ctx context.Context, s *Server, user string) *listTurn {
	ctx = authn.WithUser(ctx, &authn.User{Name: user})
	return &listTurn{s: s, needed: true,
		r: &request{Request: (&http.Request{}).WithContext(ctx), verb: "list", seat: &flowcontrol.Request{}}}
}

func TestListTurn_OnlySoManyOfOneUserWait(t *testing.T) {
	t.Parallel()
	s := &Server{places: flowcontrol.NewTurns(1)}
	first := turnOf(t.Context(), s, "a")
	require.NoError(t, first.take())
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	var had atomic.Int64
	for range listsWaiting {
		waiting.Go(func() {
			if turnOf(ctx, s, "a").take() == nil {
				had.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { return s.places.Waiting("a") == listsWaiting }, time.Minute, time.Millisecond)
	require.True(t, apierrors.IsTooManyRequests(turnOf(t.Context(), s, "a").take()))
	served := make(chan error)
	go func() { served <- turnOf(t.Context(), s, "b").take() }()
	require.Eventually(t, func() bool { return s.places.Waiting("b") == 1 }, time.Minute, time.Millisecond)

	first.leave()
	first.leave()                                                      // does nothing
	require.False(t, s.places.TryTake(), "one that waited has it now") // of the first user, who waited before
	began := turnOf(t.Context(), s, "a")
	began.begun = true
	ended, end := context.WithCancel(t.Context())
	began.r.Request = began.r.WithContext(authn.WithUser(ended, &authn.User{Name: "a"}))
	end()
	require.ErrorIs(t, began.take(), context.Canceled, "one that has begun is not refused")
	s.places.Leave() // in place of that one of the first user
	require.NoError(t, <-served)
	cancel()
	waiting.Wait()
	require.Equal(t, int64(1), had.Load())
}
