package cronjob

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

const (
	// margin is how much later than its time a run is started, so that the time has surely come.
	margin = 100 * time.Millisecond
	// tooMany missed times are told: the clock may be wrong, or the controller was away for long.
	tooMany = 100
)

// schedule reads the CronJob's times. Where it cannot, the user is told, and ok is false.
func (l *look) schedule() (s cron.Schedule, ok bool) {
	spec := &l.cj.Spec
	if spec.TimeZone == nil && strings.Contains(spec.Schedule, "TZ") {
		l.recorder.Eventf(l.cj, corev1.EventTypeWarning, "UnsupportedSchedule",
			"CRON_TZ or TZ used in schedule %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", spec.Schedule)
	}
	s, reason, err := parse(spec)
	if err != nil {
		l.recorder.Event(l.cj, corev1.EventTypeWarning, reason, err.Error())
	}
	return s, err == nil
}

// parse reads the times of a CronJob, or says, in an event's words, why it cannot.
func parse(spec *batchv1.CronJobSpec) (s cron.Schedule, reason string, err error) {
	text := spec.Schedule
	if zone := spec.TimeZone; zone != nil {
		if _, err := time.LoadLocation(*zone); err != nil {
			return nil, "UnknownTimeZone", fmt.Errorf("invalid timeZone: %q: %w", *zone, err)
		}
		if !strings.Contains(text, "TZ") {
			text = "TZ=" + *zone + " " + text
		}
	}
	s, err = cron.ParseStandard(text)
	if err != nil {
		return nil, "UnparseableSchedule", fmt.Errorf("unparseable schedule: %q : %w", spec.Schedule, err)
	}
	return s, "", nil
}

// due is the latest time that has come since the last run, or zero. Of several that were
// missed only the last is made up for.
func (l *look) due(s cron.Schedule) time.Time {
	since := l.cj.CreationTimestamp.Time
	if last := l.cj.Status.LastScheduleTime; last != nil {
		since = last.Time
	}
	if d := l.cj.Spec.StartingDeadlineSeconds; d != nil {
		if earliest := l.now.Add(-controller.Seconds(*d)); earliest.After(since) {
			since = earliest
		}
	}
	latest, missed := latestBetween(s, since, l.now)
	if missed > tooMany {
		l.recorder.Eventf(l.cj, corev1.EventTypeWarning, "TooManyMissedTimes",
			"too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	return inZone(&l.cj.Spec, latest)
}

// inZone is t as the CronJob's author writes it.
func inZone(spec *batchv1.CronJobSpec, t time.Time) time.Time {
	if zone := spec.TimeZone; zone != nil && !t.IsZero() {
		if location, err := time.LoadLocation(*zone); err == nil {
			return t.In(location)
		}
	}
	return t
}

// latestBetween is the latest of the schedule's times after since and not after now, and
// about how many there are; zero and 0 where there is none. It looks back from now in steps that
// double, for since may be long ago, and the times may be few and far between.
func latestBetween(s cron.Schedule, since, now time.Time) (latest time.Time, n int64) {
	first := s.Next(since)
	if first.IsZero() || first.After(now) {
		return time.Time{}, 0
	}
	second := s.Next(first)
	if second.IsZero() || second.After(now) {
		return first, 1
	}
	apart := max(second.Sub(first), time.Second)
	latest = first
	for back := apart; now.Add(-back).After(first); back *= 2 {
		if t := s.Next(now.Add(-back)); !t.IsZero() && !t.After(now) {
			latest = t
			break
		}
	}
	for t := s.Next(latest); !t.IsZero() && !t.After(now); t = s.Next(t) {
		latest = t
	}
	return latest, int64(now.Sub(first)/apart) + 1
}
