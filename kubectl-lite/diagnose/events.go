package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Warnings returns findings about the events of the objects: for each object, the latest event of each reason. now is
// the time by the clock of the cluster.
func Warnings(events []corev1.Event, objects []*unstructured.Unstructured, now time.Time) (found []Finding) {
	slices.SortFunc(events, func(a, b corev1.Event) int { return EventTime(b).Compare(EventTime(a)) })
	reported := map[string]bool{}
	for _, e := range events {
		about := slices.ContainsFunc(objects, func(obj *unstructured.Unstructured) bool {
			return obj.GetUID() == e.InvolvedObject.UID
		})
		subject := e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name
		if !about || reported[subject+e.Reason] {
			continue
		}
		reported[subject+e.Reason] = true
		found = append(found, Finding{Rank: warningRank(e.Reason), Subject: subject,
			Text: fmt.Sprintf("%s %s ago: %s", e.Reason, age(EventTime(e), now), strings.TrimSpace(e.Message))})
	}
	return found
}

func age(t, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t))
}

// warningRank ranks a warning by its reason.
func warningRank(reason string) Rank {
	switch reason {
	case "FailedCreate":
		return RankRefused
	case "FailedScheduling":
		return RankUnschedulable
	case "Unhealthy":
		return RankProbe
	case "FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox", "FailedBinding",
		"ProvisioningFailed":
		return RankStuck
	}
	return RankWarning
}

// EventTime returns the time when an event was last seen. Which field has it depends on the API that wrote the event.
func EventTime(e corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.FirstTimestamp.IsZero():
		return e.FirstTimestamp.Time
	}
	return e.EventTime.Time
}
