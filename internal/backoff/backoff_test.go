package backoff

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDoubling_GrowsWithARandomPart(t *testing.T) {
	t.Parallel()
	differ := false
	for range 20 {
		b := Doubling(time.Second, 5*time.Second)
		for i, want := range []time.Duration{1, 2, 4, 5, 5, 5} {
			got := b.Step()
			require.GreaterOrEqual(t, got, want*time.Second, i)
			require.LessOrEqual(t, got, want*time.Second*6/5, i)
			differ = differ || got != want*time.Second
		}
	}
	require.True(t, differ)
	short := Doubling(time.Minute, time.Second)
	require.LessOrEqual(t, short.Step(), 1200*time.Millisecond, "last is the limit")
}

func TestAfter_DoublesExactly(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]time.Duration{-1: 1, 0: 1, 1: 1, 2: 2, 3: 4, 4: 5, 5: 5, math.MaxInt: 5} {
		require.Equal(t, want*time.Second, After(failures, time.Second, 5*time.Second), failures)
	}
	require.Equal(t, time.Second, After(3, time.Minute, time.Second))
	require.Equal(t, time.Duration(math.MaxInt64), After(100, 3, math.MaxInt64), "it does not overflow")
	require.Zero(t, After(math.MaxInt, 0, time.Second))
}
