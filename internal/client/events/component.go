package events

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"
)

// As returns a recorder with client-go's interface that writes Events for one component.
func (r *Recorder) As(component string) record.EventRecorder { return as{r, component} }

type as struct {
	recorder  *Recorder
	component string
}

// Event implements record.EventRecorder.
func (a as) Event(about runtime.Object, kind, reason, message string) {
	a.record(about, nil, kind, reason, message)
}

// Eventf implements record.EventRecorder.
func (a as) Eventf(about runtime.Object, kind, reason, format string, args ...any) {
	a.record(about, nil, kind, reason, fmt.Sprintf(format, args...))
}

// AnnotatedEventf implements record.EventRecorder.
func (a as) AnnotatedEventf(about runtime.Object, annotations map[string]string, kind, reason, format string,
	args ...any) {
	a.record(about, annotations, kind, reason, fmt.Sprintf(format, args...))
}

func (a as) record(about runtime.Object, annotations map[string]string, kind, reason, message string) {
	ref, err := reference.GetReference(scheme.Scheme, about)
	if err != nil {
		a.recorder.log.Warn("cannot record an event without an object", "reason", reason, "message", message,
			"err", err)
		return
	}
	a.recorder.Record(Event{About: *ref, Component: a.component, Type: kind, Reason: reason, Message: message,
		Annotations: annotations})
}
