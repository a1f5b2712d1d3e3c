package storage

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// mutedBackend is a member of etcd that hangs with its connections open. Once it is muted, the first watch delivers no
// more changes, and one request stays unanswered.
type mutedBackend struct {
	Backend
	muted, unanswered atomic.Bool
	watches           atomic.Int64
}

func (m *mutedBackend) Watch(ctx context.Context, r FollowRequest) <-chan WatchBatch {
	inner := m.Backend.Watch(ctx, r)
	if m.watches.Add(1) > 1 {
		return inner
	}
	out := make(chan WatchBatch)
	go func() {
		defer close(out)
		for batch := range inner {
			if m.muted.Load() {
				continue
			}
			select {
			case out <- batch:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

func (m *mutedBackend) Revision(ctx context.Context) (int64, error) {
	if m.muted.Load() && m.unanswered.CompareAndSwap(false, true) {
		<-ctx.Done()
		return 0, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
	return m.Backend.Revision(ctx)
}

func TestStore_UsesAnotherMemberIfOneIsSilent(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	b := &mutedBackend{Backend: startBackend(t)}
	s := openStore(t, b, Options{})
	pods := s.Collection(podsName, podOptions)
	w := watch(t, pods, WatchRequest{})
	a := create(t, s, podKey("default", "a"), pod("default", "a", ""))
	take(t, w, 1)
	b.muted.Store(true)
	a = update(t, s, a, pod("default", "a", "n1"))
	got, err := pods.Get(ctx, "default", "a", At{})
	require.NoError(t, err)
	require.Equal(t, a, got)
	require.Equal(t, []string{brief(Event{Type: Modified, Object: a, Revision: a.Revision})}, briefs(take(t, w, 1)))
	require.Greater(t, b.watches.Load(), int64(1))
	require.NoError(t, s.Ready(ctx))
}

// slowBackend answers the first request for the revision once it has been sent again, and no other.
type slowBackend struct {
	Backend
	slow     atomic.Bool
	requests atomic.Int64 // while it is slow
	repeated chan struct{}
}

func (b *slowBackend) Revision(ctx context.Context) (int64, error) {
	if !b.slow.Load() {
		return b.Backend.Revision(ctx)
	}
	switch b.requests.Add(1) {
	case 1:
		select {
		case <-b.repeated:
			return b.Backend.Revision(ctx)
		case <-ctx.Done():
		}
	case 2:
		close(b.repeated)
	}
	<-ctx.Done()
	return 0, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
}

func TestStore_WaitsForASlowMember(t *testing.T) {
	t.Parallel()
	memory := StartMemory()
	t.Cleanup(func() { require.NoError(t, memory.Close()) })
	b := &slowBackend{Backend: memory, repeated: make(chan struct{})}
	s := openStore(t, b, Options{})
	want := create(t, s, podKey("default", "a"), pod("default", "a", "")).Revision
	b.slow.Store(true)
	got, err := s.Revision(testContext(t))
	require.NoError(t, err)
	require.Equal(t, want, got)
}
