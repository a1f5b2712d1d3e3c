// Package events writes Events: what a component did to an object, for people to read.
//
// Unlike client-go's recorder, this one uses the clock that it is given, its only goroutine exists while there are
// Events to write and can be waited for, and it may write as several clients: a node agent has one for each of its
// Nodes. Like that one, it is patient while the API server does not answer, and drops what the API server refuses.
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
	// maxQueued is how many Events may wait to be written. Beyond that the newest are dropped, so that the component
	// is not slowed down.
	maxQueued = 2000
	// maxTries is how often an Event is sent to an API server that does not answer. The pauses between, by the
	// machine's clock, double from firstPause to longestPause: two minutes in all, which is client-go's patience.
	maxTries     = 18
	firstPause   = 100 * time.Millisecond
	longestPause = 10 * time.Second
	// soon is when the next try is part of what the component is doing, rather than of an outage.
	soon = time.Second
)

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
	queue   []*queued
	writing bool // a goroutine writes the queue's
	machine clock.WithDelayedExecution
	again   clock.Timer
	nextTry time.Time // zero unless the first of the queue is to be tried again
	running sync.WaitGroup
}

// queued is an Event that waits to be written.
type queued struct {
	event      *corev1.Event
	correlated *record.EventCorrelateResult // nil before the first try: each Event is counted once
	tries      int
}

// NewRecorder makes a recorder that writes an Event with the client for its host. Nothing is written until
// Start is called.
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

// Start writes Events in the background until ctx ends. Events that are still queued then are lost, as in a crash.
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

// Busy describes the Events that have yet to be written; "" where there are none, or the API server has not answered
// for so long that they are not tried again soon.
func (r *Recorder) Busy() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) == 0 || r.ctx == nil || r.ctx.Err() != nil || r.nextTry.Sub(r.machine.Now()) > soon {
		return ""
	}
	return fmt.Sprintf("%d Events are to be written", len(r.queue))
}

// employ starts the goroutine that writes, where there is something to write now and it is not there. The caller has
// the lock.
func (r *Recorder) employ() {
	if len(r.queue) > 0 && !r.writing && r.nextTry.IsZero() && r.ctx != nil && r.ctx.Err() == nil {
		r.writing = true
		r.running.Go(r.drain)
	}
}

// drain writes the queue's Events in their order, until it is empty or the API server does not answer.
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
		r.queue[0] = nil // what remains of the queue does not keep it
		r.queue = r.queue[1:]
	}
	r.writing = false
}

// refused reports whether an error is the API server's answer, which another try does not change.
func refused(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// pause puts the next try off. The caller has the lock.
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
