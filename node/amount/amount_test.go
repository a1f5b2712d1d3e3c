package amount

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAmounts_StayNumbersWhateverObjectsSay(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, math.MaxInt64, Plus(math.MaxInt64, 1))
	require.EqualValues(t, math.MaxInt64, Times(3, math.MaxInt64/2))
	require.Zero(t, Times(3, 0))
	require.Equal(t, Longest, Seconds(math.MaxInt64))
	require.Zero(t, Seconds(math.MinInt64))
}
