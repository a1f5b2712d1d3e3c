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

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
)

// turnOf is a turn that a list of a user waits for.
func turnOf(ctx context.Context, s *Server, user string) *turn {
	ctx = authn.WithUser(ctx, &authn.User{Name: user})
	return &turn{s: s, needed: true,
		r: &request{Request: (&http.Request{}).WithContext(ctx), verb: "list", seat: &flowcontrol.Request{}}}
}

// taken waits for such a turn.
func taken(ctx context.Context, s *Server, user string) error { return turnOf(ctx, s, user).take(ctx) }

func TestTurn_OnlySoManyOfOneUserWait(t *testing.T) {
	t.Parallel()
	s := &Server{places: flowcontrol.NewTurns(1)}
	first := turnOf(t.Context(), s, "a")
	require.NoError(t, first.take(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	var had atomic.Int64
	for range turnsWaiting {
		waiting.Go(func() {
			if taken(ctx, s, "a") == nil {
				had.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { return s.places.Waiting("a") == turnsWaiting }, time.Minute, time.Millisecond)
	require.True(t, apierrors.IsTooManyRequests(taken(t.Context(), s, "a")))
	served := make(chan error)
	go func() { served <- taken(t.Context(), s, "b") }()
	require.Eventually(t, func() bool { return s.places.Waiting("b") == 1 }, time.Minute, time.Millisecond)

	first.leave()
	first.leave()                                                      // does nothing
	require.False(t, s.places.TryTake(), "one that waited has it now") // of the first user, who waited before
	began := turnOf(t.Context(), s, "a")
	began.begun = true
	ended, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, began.take(ended), context.Canceled, "one that has begun is not refused")
	s.places.Leave() // in place of that one of the first user
	require.NoError(t, <-served)
	cancel()
	waiting.Wait()
	require.Equal(t, int64(1), had.Load())
}

// The beginning of a watch waits for turns if it is long.
func TestTurn_TheBeginningOfAWatchWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	s := &Server{places: flowcontrol.NewTurns(1)}
	require.NoError(t, taken(t.Context(), s, "another"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	waits := turnOf(ctx, s, "a")
	waits.needed = false
	w := &streamWriter{r: waits.r, beginning: true, turn: *waits}
	w.r.res = &api.Resource{}
	w.count(longList - 1)
	require.NoError(t, w.turn.take(ctx), "what is short does not wait")
	w.count(1)
	_, err := w.next(ctx, nil) // does not come to the watcher
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, s.places.TryTake(), "the other one still has the place")
}
