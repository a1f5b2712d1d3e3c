package flowcontrol

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// waiting returns the number of waiting requests.
func (s *Slots) waiting() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.order.Front(); e != nil; e = e.Next() {
		n += e.Value.(*waitingUser).requests.Len()
	}
	return n
}

func TestSlots_AreFairAmongUsers(t *testing.T) {
	t.Parallel()
	slots := NewSlots(1)
	require.True(t, slots.TryTake())
	require.False(t, slots.TryTake())
	served := make(chan string)
	for i, user := range []string{"a", "a", "a", "b", "a", "c", "b"} {
		go func() {
			if err := slots.Take(t.Context(), user); err != nil {
				t.Error(err)
			}
			served <- user
		}()
		require.Eventually(t, func() bool { return slots.waiting() == i+1 }, patience, tick)
	}
	for _, want := range []string{"a", "b", "c", "a", "b", "a", "a"} {
		slots.Leave()
		require.Equal(t, want, <-served)
	}
	slots.Leave()
	require.True(t, slots.TryTake())
	require.Empty(t, slots.users)
}

func TestSlots_ForgetRequestsThatGiveUp(t *testing.T) {
	t.Parallel()
	slots := NewSlots(1)
	require.NoError(t, slots.Take(t.Context(), "a"))
	ctx, cancel := context.WithCancel(t.Context())
	var leaving sync.WaitGroup
	for range 10 {
		leaving.Go(func() {
			if err := slots.Take(ctx, "b"); err != context.Canceled {
				t.Error(err)
			}
		})
	}
	require.Eventually(t, func() bool { return slots.Waiting("b") == 10 }, patience, tick)
	require.Zero(t, slots.Waiting("a"))
	cancel()
	leaving.Wait()
	require.Empty(t, slots.users)
	slots.Leave()
	require.True(t, slots.TryTake(), "no slot was lost")
}

// Requests give up at the moment when they are served.
func TestSlots_LoseNoSlot(t *testing.T) {
	t.Parallel()
	const size = 3
	slots := NewSlots(size)
	var served, highest atomic.Int64
	var running sync.WaitGroup
	for i := range 16 {
		running.Go(func() {
			for range 500 {
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				if slots.Take(ctx, string(rune('a'+i%4))) == nil {
					if n := served.Add(1); n > highest.Load() {
						highest.Store(n)
					}
					served.Add(-1)
					slots.Leave()
				}
				cancel()
			}
		})
	}
	running.Wait()
	require.LessOrEqual(t, highest.Load(), int64(size))
	for range size {
		require.True(t, slots.TryTake())
	}
	require.False(t, slots.TryTake())
	require.Empty(t, slots.users)
}

func BenchmarkSlots(b *testing.B) {
	slots := NewSlots(1)
	for b.Loop() {
		if err := slots.Take(b.Context(), "a"); err != nil {
			b.Fatal(err)
		}
		slots.Leave()
	}
}
