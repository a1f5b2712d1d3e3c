package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// maxQueuedEvents is how many Events may wait to be written. They are for people to read: when there are
// more, the newest are dropped rather than the nodes slowed.
const maxQueuedEvents = 2000

// eventRecorder writes Events about pods, one at a time, in the background. Events that repeat are counted in the
// first, as client-go's correlator decides. Unlike client-go's own recorder it keeps to the given clock, and
// its goroutine can be waited for.
type eventRecorder struct {
	client     func(node string) kubernetes.Interface
	clock      clock.PassiveClock
	log        *slog.Logger
	correlator *record.EventCorrelator
	queue      chan *corev1.Event
	serial     atomic.Int64 // tells Events of one moment apart
}

func newEventRecorder(client func(node string) kubernetes.Interface, c clock.PassiveClock, log *slog.Logger) *eventRecorder {
	return &eventRecorder{
		client: client, clock: c, log: log,
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{Clock: c}),
		queue:      make(chan *corev1.Event, maxQueuedEvents),
	}
}

// event records something about a pod. It does not block and is safe for concurrent use.
func (r *eventRecorder) event(pod *corev1.Pod, kind, reason, message string) {
	now := metav1.NewTime(r.clock.Now())
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:      fmt.Sprintf("%s.%x", pod.Name, now.UnixNano()+r.serial.Add(1)),
			Namespace: pod.Namespace,
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		},
		Reason: reason, Message: message, Type: kind,
		Source: corev1.EventSource{Component: "kubelet", Host: pod.Spec.NodeName}, ReportingController: "kubelet", ReportingInstance: pod.Spec.NodeName,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	select {
	case r.queue <- e:
	default:
	}
}

// run writes Events until ctx ends. Those that still wait then are lost, as with a crash.
func (r *eventRecorder) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.queue:
			if err := r.write(ctx, e); err != nil && ctx.Err() == nil {
				r.log.Warn("cannot write event", "reason", e.Reason, "pod", e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "err", err)
			}
		}
	}
}

func (r *eventRecorder) write(ctx context.Context, e *corev1.Event) error {
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
