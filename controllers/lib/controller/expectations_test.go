package controller

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestExpectations(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	e := NewExpectations(clock)
	require.True(t, e.Satisfied("a"), "nothing was expected")

	e.ExpectCreations("a", 2)
	require.False(t, e.Satisfied("a"))
	require.True(t, e.Satisfied("b"))
	e.CreationObserved("a")
	require.False(t, e.Satisfied("a"))
	e.CreationFailed("a", 1)
	require.True(t, e.Satisfied("a"))

	e.ExpectDeletions("a", "x", "y")
	e.DeletionObserved("a", "x")
	e.DeletionObserved("a", "x") // a graceful end is seen twice
	require.False(t, e.Satisfied("a"))
	e.DeletionObserved("a", "y")
	require.True(t, e.Satisfied("a"))

	e.ExpectCreations("a", 1)
	clock.SetTime(time.Unix(0, 0).Add(ExpectationsTTL + time.Second))
	require.True(t, e.Satisfied("a"), "an event that never came does not block for ever")
	e.ExpectCreations("a", 1)
	e.Forget("a")
	require.True(t, e.Satisfied("a"))
}
