package cronjob

import (
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

// counted counts how often a schedule was asked.
type counted struct {
	cron.Schedule
	n int
}

func (c *counted) Next(after time.Time) time.Time {
	c.n++
	return c.Schedule.Next(after)
}

// FuzzSchedule: any schedule that can be read is soon evaluated, however long ago the last run was, and the latest of
// its times is the latest.
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
		asked := &counted{Schedule: times}
		latest, _ := latestBetween(asked, now.Add(-time.Duration(ago)*time.Second), now)
		if asked.n > 50_000 {
			t.Fatalf("%q is asked %d times", text, asked.n)
		}
		if latest.IsZero() {
			return
		}
		if latest.After(now) {
			t.Fatalf("%q has %v, which is to come", text, latest)
		}
		if next := times.Next(latest); !next.IsZero() && !next.After(now) {
			t.Fatalf("%q has %v after %v", text, next, latest)
		}
	})
}
