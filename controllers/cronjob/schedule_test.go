package cronjob

import (
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"
)

func TestLatestBetween(t *testing.T) {
	at := func(text string) time.Time {
		when, err := time.Parse("2006-01-02 15:04", text)
		require.NoError(t, err)
		return when
	}
	for _, c := range []struct {
		schedule, since, now, latest string
		n                            int64
	}{
		{"*/10 * * * *", "2026-01-01 00:01", "2026-01-01 00:09", "", 0},
		{"*/10 * * * *", "2026-01-01 00:01", "2026-01-01 00:10", "2026-01-01 00:10", 1},
		{"*/10 * * * *", "2026-01-01 00:10", "2026-01-01 00:10", "", 0},
		{"*/10 * * * *", "2026-01-01 00:01", "2026-01-01 01:05", "2026-01-01 01:00", 6},
		{"* * * * *", "2026-01-01 00:00", "2026-03-01 00:00", "2026-03-01 00:00", 84960},
		// Times that lie close together and then far apart.
		{"0 9 1-3 * *", "2026-01-01 00:00", "2026-01-31 00:00", "2026-01-03 09:00", 30},
		{"0 0 29 2 *", "2020-01-01 00:00", "2026-01-01 00:00", "2024-02-29 00:00", 2},
	} {
		s, err := cron.ParseStandard(c.schedule)
		require.NoError(t, err)
		latest, n := latestBetween(s, at(c.since), at(c.now))
		if c.latest == "" {
			require.True(t, latest.IsZero(), "%+v", c)
		} else {
			require.Equal(t, at(c.latest), latest, "%+v", c)
		}
		require.Equal(t, c.n, n, "%+v", c)
	}
}
