package controller

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSeconds_Saturate(t *testing.T) {
	require.Equal(t, 90*time.Second, Seconds(90))
	require.Equal(t, -90*time.Second, Seconds(-90))
	for _, n := range []int64{math.MaxInt64, math.MaxInt64 / 2, math.MaxInt64/int64(time.Second) + 1} {
		require.Greater(t, Seconds(n), 290*365*24*time.Hour)
		require.Less(t, Seconds(-n), -290*365*24*time.Hour)
	}
}

func TestInt32_Saturates(t *testing.T) {
	require.EqualValues(t, 7, Int32(7))
	require.EqualValues(t, math.MaxInt32, Int32(2*math.MaxInt32))
	require.EqualValues(t, math.MinInt32, Int32(2*math.MinInt32))
}
