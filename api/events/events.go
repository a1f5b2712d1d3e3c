// Package events is the group events.k8s.io/v1: the core group's Events, converted from core/v1, which is stored
// (api/core).
package events

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
)

// Kinds returns the kinds of events.k8s.io: Event, converted from core/v1. core is the registration of core/v1's Event.
func Kinds(core *api.Resource) []*api.Resource { return []*api.Resource{eventsV1(core)} }

// eventsV1 serves core/v1 Events as events.k8s.io/v1, which has the same fields with other names. Its stricter rules
// apply to writes through this version.
func eventsV1(core *api.Resource) *api.Resource {
	r := api.ServedVersionOf(core, "events.k8s.io", "v1",
		func() *eventsv1.Event { return &eventsv1.Event{} }, func() runtime.Object { return &eventsv1.EventList{} },
		toEvent, fromEvent)
	r.Fields, r.FieldPaths = nil, map[string]string{"reportingController": "reportingComponent"}
	for _, part := range []string{"kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"} {
		r.Fields = append(r.Fields, "regarding."+part)
		r.FieldPaths["regarding."+part] = "involvedObject." + part
	}
	r.Fields = append(r.Fields, "reason", "reportingController", "type")
	r.FieldIndex = "regarding.uid"
	r.ValidateCreate = api.Check(validateNewEvent)
	r.ValidateUpdate = api.CheckUpdate(validateNewEventUpdate)
	return r
}

func toEvent(e *corev1.Event) (*eventsv1.Event, error) {
	return &eventsv1.Event{
		ObjectMeta: e.ObjectMeta,
		EventTime:  e.EventTime, Series: (*eventsv1.EventSeries)(e.Series),
		ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
		Action: e.Action, Reason: e.Reason, Regarding: e.InvolvedObject, Related: e.Related,
		Note: e.Message, Type: e.Type,
		DeprecatedSource: e.Source, DeprecatedFirstTimestamp: e.FirstTimestamp,
		DeprecatedLastTimestamp: e.LastTimestamp,
		DeprecatedCount:         e.Count,
	}, nil
}

func fromEvent(e *eventsv1.Event) (*corev1.Event, error) {
	return &corev1.Event{
		ObjectMeta: e.ObjectMeta,
		EventTime:  e.EventTime, Series: (*corev1.EventSeries)(e.Series),
		ReportingController: e.ReportingController, ReportingInstance: e.ReportingInstance,
		Action: e.Action, Reason: e.Reason, InvolvedObject: e.Regarding, Related: e.Related,
		Message: e.Note, Type: e.Type,
		Source: e.DeprecatedSource, FirstTimestamp: e.DeprecatedFirstTimestamp,
		LastTimestamp: e.DeprecatedLastTimestamp,
		Count:         e.DeprecatedCount,
	}, nil
}

// validateNewEvent checks the additional requirements of events.k8s.io/v1 for a new event: no field of the old API may
// be set. Paths are those of core/v1, as in kube-apiserver.
func validateNewEvent(e *corev1.Event) field.ErrorList {
	errs := validateSeries(e)
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", "has invalid value: "+e.Type))
	}
	for _, deprecated := range []struct {
		name  string
		unset bool
	}{
		{"firstTimestamp", e.FirstTimestamp.IsZero()},
		{"lastTimestamp", e.LastTimestamp.IsZero()},
		{"count", e.Count == 0},
		{"source", e.Source == corev1.EventSource{}},
	} {
		if !deprecated.unset {
			errs = append(errs, field.Invalid(field.NewPath(deprecated.name), "", "needs to be unset"))
		}
	}
	return errs
}

// validateNewEventUpdate lets only the series and the metadata change.
func validateNewEventUpdate(e, old *corev1.Event) field.ErrorList {
	var errs field.ErrorList
	if !equality.Semantic.DeepEqual(e.Series, old.Series) {
		errs = validateSeries(e)
	}
	for _, part := range []struct {
		name    string
		is, was any
	}{
		{"involvedObject", e.InvolvedObject, old.InvolvedObject},
		{"reason", e.Reason, old.Reason},
		{"message", e.Message, old.Message},
		{"source", e.Source, old.Source},
		{"firstTimestamp", e.FirstTimestamp, old.FirstTimestamp},
		{"lastTimestamp", e.LastTimestamp, old.LastTimestamp},
		{"count", e.Count, old.Count},
		{"type", e.Type, old.Type},
		{"eventTime", e.EventTime, old.EventTime},
		{"action", e.Action, old.Action},
		{"related", e.Related, old.Related},
		{"reportingController", e.ReportingController, old.ReportingController},
		{"reportingInstance", e.ReportingInstance, old.ReportingInstance},
	} {
		if !equality.Semantic.DeepEqual(part.is, part.was) {
			errs = append(errs, field.Invalid(field.NewPath(part.name), part.is, "field is immutable"))
		}
	}
	return errs
}

func validateSeries(e *corev1.Event) field.ErrorList {
	if e.Series == nil {
		return nil
	}
	var errs field.ErrorList
	if e.Series.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series", "count"), "", "should be at least 2"))
	}
	if e.Series.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series", "lastObservedTime"), ""))
	}
	return errs
}
