package cronjob

import (
	"math"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLatestBetween(t *testing.T) {
	date := func(text string) time.Time {
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
		// Times that are close together first and far apart later.
		{"0 9 1-3 * *", "2026-01-01 00:00", "2026-01-31 00:00", "2026-01-03 09:00", 30},
		{"0 0 29 2 *", "2020-01-01 00:00", "2026-01-01 00:00", "2024-02-29 00:00", 2},
	} {
		s, err := cron.ParseStandard(c.schedule)
		require.NoError(t, err)
		latest, n := latestBetween(s, date(c.since), date(c.now))
		if c.latest == "" {
			require.True(t, latest.IsZero(), "%+v", c)
		} else {
			require.Equal(t, date(c.latest), latest, "%+v", c)
		}
		require.Equal(t, c.n, n, "%+v", c)
	}
}

func TestNextRun(t *testing.T) {
	now := time.Date(2026, 12, 31, 23, 59, 30, 0, time.UTC)
	for _, c := range []struct {
		schedule, zone string
		suspend        bool
		want           string
	}{
		{schedule: "* * * * *", want: "2027-01-01T00:00:00Z"},
		{schedule: "0 8 * * *", zone: "Asia/Kathmandu", want: "2027-01-01T08:00:00+05:45"},
		{schedule: "* * * * *", suspend: true, want: "suspended"},
		{schedule: "0 0 30 2 *", want: "never"},
		{schedule: "soon", want: `unparseable schedule: "soon" : expected exactly 5 fields, found 1: [soon]`},
		{schedule: "* * * * *", zone: "Nowhere/Land",
			want: `invalid timeZone: "Nowhere/Land": unknown time zone Nowhere/Land`},
	} {
		cj := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: c.schedule, Suspend: &c.suspend}}
		if c.zone != "" {
			cj.Spec.TimeZone = &c.zone
		}
		require.Equal(t, c.want, nextRun(cj, now), c.schedule)
	}
}

func TestDue_WithADeadlineThatNeverComes(t *testing.T) {
	hourly, err := cron.ParseStandard("0 * * * *")
	require.NoError(t, err)
	now := time.Date(2026, 1, 1, 12, 30, 0, 0, time.UTC)
	cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
	cj.Spec.StartingDeadlineSeconds = new(int64(math.MaxInt64))
	s := &sync{cj: cj, now: now}
	require.Equal(t, now.Add(-30*time.Minute), s.due(hourly).UTC())
}
