// Package events writes Events, which describe for people the actions of a component on an object.
//
// Unlike client-go's recorder, this one uses the clock that is passed to it. Its only goroutine exists while there
// are Events to write, and a caller can wait for it. It may write as several clients: a node agent has one for each
// of its Nodes. Like client-go's recorder, it retries while the API server does not answer, and drops Events that
// the API server rejects.
package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/internal/backoff"
)

const (
	// maxQueued limits the Events that wait to be written. Beyond it the newest are dropped, so that the component
	// is not slowed down.
	maxQueued = 2000
	// maxTries is how often an Event is sent to an API server that does not answer. The pauses in between go by the
	// machine's clock and double from firstPause to longestPause. In all this takes two minutes, as long as
	// client-go retries.
	maxTries     = 18
	firstPause   = 100 * time.Millisecond
	longestPause = 10 * time.Second
	// soon separates retries that belong to the component's current work from retries during an outage.
	soon = time.Second
)

// Event describes an action or an observation.
type Event struct {
	// About is the object, by its kind, namespace, name and UID. Events about cluster-scoped objects are written to
	// the namespace default.
	About corev1.ObjectReference
	// Component is the reporting component; Host is its node, if it runs on one.
	Component, Host string
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type            string
	Reason, Message string
	// Action is the action that was taken; it may be empty.
	Action      string
	Annotations map[string]string
}

// Pod returns a reference to a pod.
func Pod(pod *corev1.Pod) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion,
	}
}

// Recorder writes Events one at a time, in the background. Repeated Events increase the count of the first one;
// client-go's correlator decides which Events are equal.
type Recorder struct {
	client     func(host string) kubernetes.Interface
	clock      clock.PassiveClock
	log        *slog.Logger
	correlator *record.EventCorrelator
	serial     atomic.Int64 // makes the names of Events of one moment unique

	mu      sync.Mutex
	ctx     context.Context // nil before Start
	queue   []*queued
	writing bool // a goroutine runs drain
	machine clock.WithDelayedExecution
	again   clock.Timer
	nextTry time.Time // set while the first Event of the queue waits for a retry
	running sync.WaitGroup
}

// queued is an Event that waits to be written.
type queued struct {
	event      *corev1.Event
	correlated *record.EventCorrelateResult // nil before the first try: each Event is counted once
	tries      int
}

// NewRecorder returns a recorder that writes an Event with the client for its host. It writes after Start is
// called.
func NewRecorder(client func(host string) kubernetes.Interface, c clock.PassiveClock, log *slog.Logger) *Recorder {
	return &Recorder{
		client: client, clock: c, log: log, machine: clock.RealClock{},
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
		r.queue = append(r.queue, &queued{event: written})
		r.employ()
	}
}

// Start writes Events in the background until ctx ends. Events that are still queued at that time are lost, as in a
// crash.
func (r *Recorder) Start(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ctx = ctx
	r.employ()
}

// Wait returns when no Event is being written. The context of Start must have ended.
func (r *Recorder) Wait() {
	r.running.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.again != nil {
		r.again.Stop()
	}
}

// Busy describes the Events that are not written yet. It is "" if there are none, or if the API server has not
// answered for so long that the next try is not soon.
func (r *Recorder) Busy() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 || r.ctx == nil || r.ctx.Err() != nil || r.nextTry.Sub(r.machine.Now()) > soon {
		return ""
	}
	return fmt.Sprintf("%d Events are not written yet", len(r.queue))
}

// employ starts the goroutine that writes, unless it runs already or there is no Event to write now. The caller
// holds the lock.
func (r *Recorder) employ() {
	if len(r.queue) > 0 && !r.writing && r.nextTry.IsZero() && r.ctx != nil && r.ctx.Err() == nil {
		r.writing = true
		r.running.Go(r.drain)
	}
}

// drain writes the queue's Events in order, until the queue is empty or the API server does not answer.
func (r *Recorder) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 && r.nextTry.IsZero() && r.ctx.Err() == nil {
		q := r.queue[0]
		r.mu.Unlock()
		err := r.write(r.ctx, q)
		r.mu.Lock()
		if err != nil && r.ctx.Err() == nil {
			if q.tries < maxTries && !refused(err) {
				r.pause(q.tries)
				continue
			}
			about := q.event.InvolvedObject
			r.log.Warn("cannot write event", "reason", q.event.Reason, "about", about.Namespace+"/"+about.Name,
				"err", err)
		}
		r.queue[0] = nil // the array must not keep the Event alive
		r.queue = r.queue[1:]
	}
	r.writing = false
}

// refused reports whether an error is an answer of the API server, which a retry would not change.
func refused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// pause delays the next try. The caller holds the lock.
func (r *Recorder) pause(tries int) {
	pause := wait.Jitter(backoff.After(tries, firstPause, longestPause), backoff.Jitter)
	r.nextTry = r.machine.Now().Add(pause)
	r.again = r.machine.AfterFunc(pause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.nextTry = time.Time{}
		r.employ()
	})
}

func (r *Recorder) write(ctx context.Context, q *queued) (err error) {
	if q.tries++; q.correlated == nil {
		if q.correlated, err = r.correlator.EventCorrelate(q.event); err != nil {
			return err
		}
	}
	e, result := q.event, q.correlated
	if result.Skip {
		return nil
	}
	events := r.client(e.Source.Host).CoreV1().Events(e.Namespace)
	var written *corev1.Event
	repeated := result.Event.Count > 1
	if repeated {
		written, err = events.PatchWithEventNamespaceWithContext(ctx, result.Event, result.Patch)
	}
	if !repeated || apierrors.IsNotFound(err) { // the first one, or the Event that counted it has expired
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
