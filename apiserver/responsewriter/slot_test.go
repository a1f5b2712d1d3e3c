package responsewriter

import (
	"context"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// slotOf returns a slot that a list of a user needs.
func slotOf(t *testing.T, l *Limiter, user string) *slot {
	return &slot{w: l.open(t, httptest.NewRecorder(), user).Writer, needed: true}
}

// acquired waits for such a slot.
func acquired(t *testing.T, ctx context.Context, l *Limiter, user string) error {
	return slotOf(t, l, user).acquire(authn.WithUser(ctx, &authn.User{Name: user}))
}

func TestSlot_LimitsTheWaitingListsOfAUser(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(0)
	e := l.open(t, httptest.NewRecorder(), "a")
	first := &slot{w: e.Writer, needed: true}
	require.NoError(t, first.acquire(e.ctx))
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	var acquisitions atomic.Int64
	for range maxWaiting {
		waiting.Go(func() {
			if acquired(t, ctx, l, "a") == nil {
				acquisitions.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { return l.slots.Waiting("a") == maxWaiting }, patience, tick)
	require.True(t, apierrors.IsTooManyRequests(acquired(t, t.Context(), l, "a")))
	served := make(chan error)
	go func() { served <- acquired(t, t.Context(), l, "b") }()
	require.Eventually(t, func() bool { return l.slots.Waiting("b") == 1 }, patience, tick)

	first.release()
	first.release()                                                         // has no effect
	require.False(t, l.slots.TryTake(), "a request that waited has it now") // of the first user, which waited longer
	begun := slotOf(t, l, "a")
	begun.begun = true
	ended, end := context.WithCancel(e.ctx)
	end()
	require.ErrorIs(t, begun.acquire(ended), context.Canceled, "a list that has begun is not rejected")
	l.slots.Leave() // instead of the first user's list
	require.NoError(t, <-served)
	cancel()
	waiting.Wait()
	require.Equal(t, int64(1), acquisitions.Load())
}

func TestSlot_IsReleasedWhileMemoryIsAwaited(t *testing.T) {
	t.Parallel()
	l := newTestLimiter(1 << 20)
	holder := l.open(t, httptest.NewRecorder(), "a")
	require.NoError(t, holder.Reserve(holder.ctx, 1<<20))
	waits := l.open(t, httptest.NewRecorder(), "b")
	s := &slot{w: waits.Writer, needed: true}
	require.NoError(t, s.acquire(waits.ctx))
	reserved := make(chan error)
	go func() { reserved <- s.reserve(waits.ctx, 512<<10) }()
	other := &slot{w: holder.Writer, needed: true}
	require.NoError(t, other.acquire(holder.ctx), "the holder of the memory gets the slot")
	other.release()
	holder.Close()
	require.NoError(t, <-reserved)
	require.True(t, s.active, "the slot is held again")
	s.release()
}
