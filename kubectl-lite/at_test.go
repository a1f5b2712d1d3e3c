package kubectllite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestGet_ShowsThePast(t *testing.T) {
	t.Parallel()
	began := time.Now()
	// The server dates its own identity Lease by this clock.
	serverClock := clocktesting.NewFakeClock(began.Add(-time.Hour))
	l := clitest.Start(t, testenv.APIServerOnly(), testenv.WithClock(serverClock))
	since := func(ago time.Duration) {
		serverClock.SetTime(began.Add(-ago))
		l.RenewLease(t, ago)
	}
	since(time.Hour)
	l.Succeed(t, "", "create cm settings --from-literal=mode=fast")
	since(30 * time.Minute)
	l.Succeed(t, "", `patch cm settings -p '{"data":{"mode":"slow"}}'`)
	l.Succeed(t, "", "create cm another")
	since(10 * time.Minute)
	l.Succeed(t, "", "delete cm settings")
	since(time.Minute)

	for ago, mode := range map[string]string{"45m": "fast", "20m": "slow"} {
		require.Equal(t, mode, l.Succeed(t, "", "get cm settings -o jsonpath={.data.mode} --at "+ago))
		require.Equal(t, mode, l.Succeed(t, "", "get cm/settings -o jsonpath={.data.mode} --at "+ago))
	}
	require.Equal(t, "configmap/settings\n", l.Succeed(t, "", "get cm -o name --at 45m"))
	require.Equal(t, "configmap/another\nconfigmap/settings\n",
		l.Succeed(t, "", "get cm -o name --at "+time.Now().Add(-20*time.Minute).Format(time.RFC3339)))
	table := l.Run(t, "", "get cm/settings --at 20m")
	require.Regexp(t, `^NAME +DATA +AGE\nsettings +1 `, table.Out)
	require.Regexp(t, `^As of revision \d+, between .* and .*:\n$`, table.ErrOut)

	for line, refusal := range map[string]string{
		"get cm settings --at 5m":       `configmaps "settings" not found`,
		"get cm settings --at 2h":       "does not reach back so far",
		"get cm settings --at tomorrow": "neither a duration",
		"get cm -w --at 5m":             "can not be watched",
		"get cm a b --at 5m":            "exactly one object is required",
	} {
		got := l.Run(t, "", line)
		require.Equal(t, 1, got.Code, line)
		require.Contains(t, got.ErrOut, refusal, line)
	}
}
