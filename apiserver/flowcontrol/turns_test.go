package flowcontrol

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// waiting is how many requests wait.
func (t *Turns) waiting() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for e := t.order.Front(); e != nil; e = e.Next() {
		n += e.Value.(*turn).requests.Len()
	}
	return n
}

func TestTurns_GoAroundTheUsers(t *testing.T) {
	t.Parallel()
	turns := NewTurns(1)
	require.True(t, turns.TryTake())
	require.False(t, turns.TryTake())
	served := make(chan string)
	for i, user := range []string{"a", "a", "a", "b", "a", "c", "b"} {
		go func() {
			if err := turns.Take(t.Context(), user); err != nil {
				t.Error(err)
			}
			served <- user
		}()
		require.Eventually(t, func() bool { return turns.waiting() == i+1 }, patience, tick)
	}
	for _, want := range []string{"a", "b", "c", "a", "b", "a", "a"} {
		turns.Leave()
		require.Equal(t, want, <-served)
	}
	turns.Leave()
	require.True(t, turns.TryTake())
	require.Empty(t, turns.users)
}

func TestTurns_ThoseWhoLeaveAreForgotten(t *testing.T) {
	t.Parallel()
	turns := NewTurns(1)
	require.NoError(t, turns.Take(t.Context(), "a"))
	ctx, cancel := context.WithCancel(t.Context())
	var gone sync.WaitGroup
	for range 10 {
		gone.Go(func() {
			if err := turns.Take(ctx, "b"); err != context.Canceled {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { return turns.Waiting("b") == 10 }, patience, tick)
	require.Zero(t, turns.Waiting("a"))
	cancel()
	gone.Wait()
	require.Empty(t, turns.users)
	turns.Leave()
	require.True(t, turns.TryTake(), "no place was lost")
}

// TestTurns_LoseNoPlace has requests leave at the moment at which they are served.
func TestTurns_LoseNoPlace(t *testing.T) {
	t.Parallel()
	const places = 3
	turns := NewTurns(places)
	var held, most atomic.Int64
	var running sync.WaitGroup
	for i := range 16 {
		running.Go(func() {
			for range 500 {
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				if turns.Take(ctx, string(rune('a'+i%4))) == nil {
					if n := held.Add(1); n > most.Load() {
						most.Store(n)
					}
					held.Add(-1)
					turns.Leave()
				}
				cancel()
			}
		})
	}
	running.Wait()
	require.LessOrEqual(t, most.Load(), int64(places))
	for range places {
		require.True(t, turns.TryTake())
	}
	require.False(t, turns.TryTake())
	require.Empty(t, turns.users)
}

func BenchmarkTurns(b *testing.B) {
	turns := NewTurns(1)
	for b.Loop() {
		if err := turns.Take(b.Context(), "a"); err != nil {
			b.Fatal(err)
		}
		turns.Leave()
	}
}
