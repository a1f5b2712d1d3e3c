package kubectllite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestClock_ShowsAndMovesTheServersClock(t *testing.T) {
	t.Parallel()
	clock := virtualtime.New(time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC))
	l := clitest.Start(t, testenv.APIServerOnly(), testenv.WithClock(clock))
	require.Equal(t, "2031-05-01T08:00:00Z\n", l.Succeed(t, "", "clock"))
	require.Regexp(t, `^2031-05-01T09:00:00Z, 1h0m0s later \(it took [0-9.]+m?s\)\n$`,
		l.Succeed(t, "", "clock advance 1h"))
	require.Contains(t, l.Succeed(t, "", "clock advance --to 2031-06-01T00:00:00Z"),
		"2031-06-01T00:00:00Z, 735h0m0s later")
	for line, words := range map[string]string{
		"clock advance": "either a duration or --to is required",
		"clock advance 1h --to=2031-06-02T00:00:00Z": "either a duration or --to is required",
		"clock advance soon":                         `"soon" is no duration to move a clock by`,
		"clock advance -- -1h":                       `"-1h" is no duration to move a clock by`,
		"clock advance --to=tomorrow":                `"tomorrow" is no time`,
		"clock advance --to=2030-06-02T00:00:00Z":    "the clock cannot go back",
	} {
		got := l.Run(t, "", line)
		require.NotZero(t, got.Code, line)
		require.Contains(t, got.ErrOut, words, line)
	}
	require.Equal(t, "2031-06-01T00:00:00Z\n", l.Succeed(t, "", "clock"))
}

func TestClock_OfARealServerCannotBeMoved(t *testing.T) {
	t.Parallel()
	l := clitest.Start(t, testenv.APIServerOnly())
	for _, line := range []string{"clock", "clock advance 1h"} {
		got := l.Run(t, "", line)
		require.NotZero(t, got.Code)
		require.Contains(t, got.ErrOut, "the clock of this server goes by itself")
	}
}
