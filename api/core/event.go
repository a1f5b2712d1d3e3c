package core

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

func events() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Version: "v1", Kind: "Event", Plural: "events", Namespaced: true,
			ShortNames: []string{"ev"},
		},
		Storage: api.Storage{
			Expires: true,
			New:     func() api.Object { return &corev1.Event{} },
			NewList: func() runtime.Object { return &corev1.EventList{} },
			Fields: []string{
				"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
				"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
				"reason", "reportingComponent", "source", "type",
			},
			FieldIndex: "involvedObject.uid",
			FieldPaths: map[string]string{"source": "source.component"},
		},
		Strategy: api.Strategy{
			CreateOnUpdate:  true,
			GenericMetadata: true,
			ValidateName:    validate.SegmentName,
			Validate:        api.Check(validateEvent),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Column("Last Seen", "string", corev1.Event{}.SwaggerDoc()["lastTimestamp"]),
				table.Column("Type", "string", corev1.Event{}.SwaggerDoc()["type"]),
				table.Column("Reason", "string", corev1.Event{}.SwaggerDoc()["reason"]),
				table.Column("Object", "string", corev1.Event{}.SwaggerDoc()["involvedObject"]),
				table.Wide("Subobject", "string", corev1.ObjectReference{}.SwaggerDoc()["fieldPath"]),
				table.Wide("Source", "string", corev1.Event{}.SwaggerDoc()["source"]),
				table.Column("Message", "string", corev1.Event{}.SwaggerDoc()["message"]),
				table.Wide("First Seen", "string", corev1.Event{}.SwaggerDoc()["firstTimestamp"]),
				table.Wide("Count", "string", corev1.Event{}.SwaggerDoc()["count"]),
				wideName,
			},
			Cells: api.Row(eventCells),
		},
	}
}

var wideName = metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Priority: 1,
	Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}

// eventCells shows both forms of an event: the old one with first and last timestamps and a count, and the
// new one with one time and a series.
func eventCells(e *corev1.Event) []any {
	first := table.AgeOf(e.FirstTimestamp)
	if e.FirstTimestamp.IsZero() {
		first = table.MicroAgeOf(e.EventTime)
	}
	last := table.AgeOf(e.LastTimestamp)
	if e.LastTimestamp.IsZero() {
		last = first
	}
	count := e.Count
	if e.Series != nil {
		last, count = table.MicroAgeOf(e.Series.LastObservedTime), e.Series.Count
	} else if count == 0 {
		count = 1
	}
	object := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		object += "/" + e.InvolvedObject.Name
	}
	return []any{
		last, e.Type, e.Reason, object, e.InvolvedObject.FieldPath, sourceCell(e),
		strings.TrimSpace(e.Message), first, int64(count), e.Name,
	}
}

func sourceCell(e *corev1.Event) string {
	component, host := cmp.Or(e.Source.Component, e.ReportingController), cmp.Or(e.Source.Host, e.ReportingInstance)
	if host == "" {
		return component
	}
	return component + ", " + host
}

// validateEvent checks old events only loosely. Events with an eventTime have the stricter rules of the new API.
func validateEvent(e *corev1.Event) field.ErrorList {
	errs := validateEventNamespace(e)
	if !e.EventTime.IsZero() {
		errs = append(errs, validate.RequiredQualifiedName(e.ReportingController,
			field.NewPath("reportingController"))...)
		errs = append(errs, requiredWithin(e.ReportingInstance, 128, field.NewPath("reportingInstance"))...)
		errs = append(errs, requiredWithin(e.Action, 128, field.NewPath("action"))...)
		errs = append(errs, requiredWithin(e.Reason, 128, field.NewPath("reason"))...)
		if len(e.Message) > 1024 {
			errs = append(errs, field.Invalid(field.NewPath("message"), "", "can have at most 1024 characters"))
		}
	}
	return append(errs, validate.Complaints(field.NewPath("namespace"), e.Namespace,
		namespaceComplaints(e.Namespace))...)
}

// validateEventNamespace requires an old event to be in the namespace of its object. Events of cluster-wide
// objects are in default or, if new, in kube-system.
func validateEventNamespace(e *corev1.Event) field.ErrorList {
	involved, namespace := e.InvolvedObject.Namespace, e.Namespace
	fits := involved == namespace || involved == "" && namespace == metav1.NamespaceDefault
	if !e.EventTime.IsZero() {
		fits = involved != "" || namespace == metav1.NamespaceDefault || namespace == metav1.NamespaceSystem
	}
	if fits {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("involvedObject", "namespace"), involved,
		"does not match event.namespace")}
}

func namespaceComplaints(ns string) []string {
	if ns == "" {
		return nil
	}
	return naming.IsDNS1123Subdomain(ns)
}

func requiredWithin(value string, limit int, path *field.Path) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, "")}
	case len(value) > limit:
		return field.ErrorList{field.Invalid(path, "", fmt.Sprintf("can have at most %d characters", limit))}
	}
	return nil
}
