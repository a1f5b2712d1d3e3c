// Package events writes Events: what a component did to an object, for people to read.
//
// Unlike client-go's recorder, this one uses the clock that it is given, its only goroutine exists while there are
// Events to write and can be waited for, and it may write as several clients: a node agent has one for each of its
// Nodes.
package events

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// maxQueued is how many Events may wait to be written. Beyond that the newest are dropped, so that the component is
// not slowed down.
const maxQueued = 2000

// Event is what happened.
type Event struct {
	// About is the object, by its kind, namespace, name and UID. Events about cluster-scoped objects are in default.
	About corev1.ObjectReference
	// Component is the reporting component; Host is its node, if it runs on one.
	Component, Host string
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type            string
	Reason, Message string
	// Action is what was done; it may be empty.
	Action      string
	Annotations map[string]string
}

// Pod refers to a pod.
func Pod(pod *corev1.Pod) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion,
	}
}

// Recorder writes Events one at a time, in the background. Events that repeat are counted in the first, as client-go's
// correlator decides.
type Recorder struct {
	client     func(host string) kubernetes.Interface
	clock      clock.PassiveClock
	log        *slog.Logger
	correlator *record.EventCorrelator
	serial     atomic.Int64 // makes the names of Events of one moment differ

	mu      sync.Mutex
	ctx     context.Context // nil before Start
	queue   []*corev1.Event
	writing bool // a goroutine writes the queue's
	running sync.WaitGroup
}

// NewRecorder makes a recorder that writes an Event with the client for its host. Nothing is written until
// Start is called.
func NewRecorder(client func(host string) kubernetes.Interface, c clock.PassiveClock, log *slog.Logger) *Recorder {
	return &Recorder{
		client: client, clock: c, log: log,
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{Clock: c}),
	}
}

// Record queues an Event. It does not block and is safe for concurrent use.
func (r *Recorder) Record(e Event) {
	now := metav1.NewTime(r.clock.Now())
	namespace := e.About.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	written := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", e.About.Name, now.UnixNano()+r.serial.Add(1)),
			Namespace: namespace, Annotations: e.Annotations},
		InvolvedObject: e.About,
		Reason:         e.Reason, Message: e.Message, Type: e.Type, Action: e.Action,
		Source:              corev1.EventSource{Component: e.Component, Host: e.Host},
		ReportingController: e.Component, ReportingInstance: e.Host,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) < maxQueued {
		r.queue = append(r.queue, written)
		r.employ()
	}
}

// Start writes Events in the background until ctx ends. Events that are still queued then are lost, as in a crash.
func (r *Recorder) Start(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx = ctx
	r.employ()
}

// Wait returns when no Event is being written. The context of Start must have ended.
func (r *Recorder) Wait() { r.running.Wait() }

// Busy describes the Events that have yet to be written; "" where there are none.
func (r *Recorder) Busy() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.writing {
		return ""
	}
	return fmt.Sprintf("%d Events are to be written", len(r.queue)+1)
}

// employ starts the goroutine that writes, where there is something to write and it is not there. The caller has the
// lock.
func (r *Recorder) employ() {
	if len(r.queue) > 0 && !r.writing && r.ctx != nil && r.ctx.Err() == nil {
		r.writing = true
		r.running.Go(r.drain)
	}
}

func (r *Recorder) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 && r.ctx.Err() == nil {
		e := r.queue[0]
		r.queue = r.queue[1:]
		r.mu.Unlock()
		if err := r.write(r.ctx, e); err != nil && r.ctx.Err() == nil {
			r.log.Warn("cannot write event", "reason", e.Reason, "about", e.InvolvedObject.Namespace+"/"+
				e.InvolvedObject.Name, "err", err)
		}
		r.mu.Lock()
	}
	r.writing = false
}

func (r *Recorder) write(ctx context.Context, e *corev1.Event) error {
	result, err := r.correlator.EventCorrelate(e)
	if err != nil || result.Skip {
		return err
	}
	events := r.client(e.Source.Host).CoreV1().Events(e.Namespace)
	var written *corev1.Event
	repeated := result.Event.Count > 1
	if repeated {
		written, err = events.PatchWithEventNamespaceWithContext(ctx, result.Event, result.Patch)
	}
	if !repeated || apierrors.IsNotFound(err) { // the first, or the one that was counted in has expired
		result.Event.ResourceVersion = ""
		written, err = events.CreateWithEventNamespaceWithContext(ctx, result.Event)
	}
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	if err == nil {
		r.correlator.UpdateState(written)
	}
	return err
}
