package cronjob

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/limits"
)

// tooMany is the number of missed times above which an Event is recorded: the clock may be wrong, or the
// controller was stopped for long.
const tooMany = 100

// schedule parses the CronJob's schedule. If that fails, it records an Event and ok is false.
func (s *sync) schedule() (times cron.Schedule, ok bool) {
	spec := &s.cj.Spec
	if spec.TimeZone == nil && strings.Contains(spec.Schedule, "TZ") {
		s.recorder.Eventf(s.cj, corev1.EventTypeWarning, "UnsupportedSchedule",
			"CRON_TZ or TZ used in schedule %q is not officially supported, see "+
				"https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", spec.Schedule)
	}
	times, reason, err := parse(spec)
	if err != nil {
		s.recorder.Event(s.cj, corev1.EventTypeWarning, reason, err.Error())
	}
	return times, err == nil
}

// parse parses the schedule in a CronJob's spec. reason is the reason of the Event for an error.
func parse(spec *batchv1.CronJobSpec) (times cron.Schedule, reason string, err error) {
	text := spec.Schedule
	if zone := spec.TimeZone; zone != nil {
		if _, err := time.LoadLocation(*zone); err != nil {
			return nil, "UnknownTimeZone", fmt.Errorf("invalid timeZone: %q: %w", *zone, err)
		}
		if !strings.Contains(text, "TZ") {
			text = "TZ=" + *zone + " " + text
		}
	}
	times, err = limits.ParseSchedule(text)
	if err != nil {
		return nil, "UnparseableSchedule", fmt.Errorf("unparseable schedule: %q : %w", spec.Schedule, err)
	}
	return times, "", nil
}

// due returns the latest scheduled time since the last run; zero if there is none. If several times were
// missed, only the latest is run.
func (s *sync) due(times cron.Schedule) time.Time {
	since := s.cj.CreationTimestamp.Time
	if last := s.cj.Status.LastScheduleTime; last != nil {
		since = last.Time
	}
	if d := s.cj.Spec.StartingDeadlineSeconds; d != nil {
		if earliest := s.now.Add(-controller.Seconds(*d)); earliest.After(since) {
			since = earliest
		}
	}
	latest, missed := latestBetween(times, since, s.now)
	if missed > tooMany {
		s.recorder.Eventf(s.cj, corev1.EventTypeWarning, "TooManyMissedTimes",
			"too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	return inZone(&s.cj.Spec, latest)
}

// inZone returns t in the CronJob's time zone.
func inZone(spec *batchv1.CronJobSpec, t time.Time) time.Time {
	if zone := spec.TimeZone; zone != nil && !t.IsZero() {
		if location, err := time.LoadLocation(*zone); err == nil {
			return t.In(location)
		}
	}
	return t
}

// latestBetween returns the latest scheduled time after since and not after now, and the approximate number of
// such times; zero and 0 if there is none. It searches back from now in steps that double, because since may be
// long ago, and the times may be far apart.
func latestBetween(times cron.Schedule, since, now time.Time) (latest time.Time, n int64) {
	first := times.Next(since)
	if first.IsZero() || first.After(now) {
		return time.Time{}, 0
	}
	second := times.Next(first)
	if second.IsZero() || second.After(now) {
		return first, 1
	}
	distance := max(second.Sub(first), time.Second)
	latest = first
	for back := distance; now.Add(-back).After(first); back *= 2 {
		if t := times.Next(now.Add(-back)); !t.IsZero() && !t.After(now) {
			latest = t
			break
		}
	}
	for t := times.Next(latest); !t.IsZero() && !t.After(now); t = times.Next(t) {
		latest = t
	}
	return latest, int64(now.Sub(first)/distance) + 1
}
