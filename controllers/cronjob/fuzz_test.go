package cronjob

import (
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

// counted counts the calls of a schedule's Next.
type counted struct {
	cron.Schedule
	n int
}

func (c *counted) Next(after time.Time) time.Time {
	c.n++
	return c.Schedule.Next(after)
}

// FuzzSchedule checks that every valid schedule is evaluated with few calls, however long ago the last run was,
// and that the result is its latest time.
func FuzzSchedule(f *testing.F) {
	for _, text := range []string{"* * * * *", "*/5 0-6 1 1 *", "0 0 29 2 *", "0 0 31 2 *", "@every 1s", "@every 1000h",
		"@yearly", "59 23 31 12 0", "TZ=Europe/Berlin 30 2 * 3,10 *", "CRON_TZ=UTC 0 0 * * *", "* * * 1 *",
		"TZ="} {
		f.Add(text, int64(3600), "")
		f.Add(text, int64(10*365*24*3600), "America/New_York")
	}
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string, ago int64, zone string) {
		spec := &batchv1.CronJobSpec{Schedule: text}
		if zone != "" {
			spec.TimeZone = &zone
		}
		times, _, err := parse(spec)
		if err != nil || ago < 0 || ago > 50*365*24*3600 {
			return
		}
		calls := &counted{Schedule: times}
		latest, _ := latestBetween(calls, now.Add(-time.Duration(ago)*time.Second), now)
		if calls.n > 50_000 {
			t.Fatalf("%q takes %d calls", text, calls.n)
		}
		if latest.IsZero() {
			return
		}
		if latest.After(now) {
			t.Fatalf("%q has %v, which is in the future", text, latest)
		}
		if next := times.Next(latest); !next.IsZero() && !next.After(now) {
			t.Fatalf("%q has %v after %v", text, next, latest)
		}
	})
}
