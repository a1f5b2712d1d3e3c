package events

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestRecorder_CountsRepeatedEvents(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	var hosts []string
	r := NewRecorder(func(host string) kubernetes.Interface {
		hosts = append(hosts, host)
		return client
	}, clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)), slog.Default())
	record := func(e Event) {
		r.Record(e)
		require.NoError(t, r.write(t.Context(), r.queue[0]))
		r.queue = r.queue[1:]
	}
	pod := Pod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "apps", UID: "1"}})
	for range 3 {
		record(Event{About: pod, Component: "scheduler", Type: corev1.EventTypeWarning, Reason: "FailedScheduling",
			Action: "Scheduling", Message: "no room"})
	}
	record(Event{About: pod, Component: "kubelet", Host: "n", Type: corev1.EventTypeNormal, Reason: "Started",
		Message: "Container started"})
	events, err := client.CoreV1().Events("apps").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	counts := map[string]int32{}
	for _, e := range events.Items {
		counts[e.Reason] = e.Count
		require.Equal(t, e.Source.Component, e.ReportingController)
		require.Equal(t, "p", e.InvolvedObject.Name)
	}
	require.Equal(t, map[string]int32{"FailedScheduling": 3, "Started": 1}, counts)
	require.Equal(t, []string{"", "", "", "n"}, hosts)

	record(Event{About: corev1.ObjectReference{Kind: "Node", Name: "n", UID: "n"}, Component: "kubelet", Host: "n",
		Type: corev1.EventTypeNormal, Reason: "NodeReady"})
	events, err = client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, events.Items, 1)
}

func TestRecorder_DropsEventsRatherThanBlock(t *testing.T) {
	t.Parallel()
	r := NewRecorder(nil, clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)), slog.Default())
	for range maxQueued + 1 {
		r.Record(Event{About: corev1.ObjectReference{Name: "p"}})
	}
	require.Len(t, r.queue, maxQueued)
}

// unreliable returns a client of an API server that answers the first writes of Events with these errors, and
// counts the writes.
func unreliable(answers ...error) (kubernetes.Interface, *atomic.Int32) {
	client, requests := fake.NewClientset(), &atomic.Int32{}
	client.PrependReactor("*", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetVerb() == "list" {
			return false, nil, nil
		}
		if n := int(requests.Add(1)); n <= len(answers) {
			return true, nil, answers[n-1]
		}
		return false, nil, nil
	})
	return client, requests
}

// recordTwice writes two Events of one kind with a client, and returns the Events that are stored afterwards.
func recordTwice(t *testing.T, client kubernetes.Interface) []corev1.Event {
	t.Helper()
	r := NewRecorder(func(string) kubernetes.Interface { return client }, clocktesting.NewFakeClock(
		time.Unix(1_800_000_000, 0)), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	r.Start(ctx)
	for range 2 {
		r.Record(Event{About: corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: "apps"}, Reason: "Started"})
	}
	require.NotEmpty(t, r.Busy())
	require.Eventually(t, func() bool { return r.Busy() == "" }, time.Minute, time.Millisecond)
	cancel()
	r.Wait()
	all, err := client.CoreV1().Events("apps").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return all.Items
}

func TestRecorder_RetriesIfTheAPIServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	client, requests := unreliable(syscall.ECONNREFUSED, io.ErrUnexpectedEOF)
	stored := recordTwice(t, client)
	require.Len(t, stored, 1)
	require.EqualValues(t, 2, stored[0].Count, "a try is not counted")
	require.EqualValues(t, 4, requests.Load())
}

func TestRecorder_DropsRejectedEvents(t *testing.T) {
	t.Parallel()
	refusal := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "p", errors.New("not yours"))
	client, requests := unreliable(refusal)
	stored := recordTwice(t, client)
	require.Len(t, stored, 1)
	require.EqualValues(t, 3, requests.Load(), "the first, a count in the first, which does not exist, and the second")
}

func TestRecorder_IsNotBusyInALongOutage(t *testing.T) {
	t.Parallel()
	r := NewRecorder(nil, clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)), slog.Default())
	ctx, cancel := context.WithCancel(t.Context())
	r.ctx, r.queue = ctx, []*queued{{}}
	for tries, busy := range map[int]bool{1: true, 4: true, 5: false, maxTries - 1: false} {
		r.pause(tries)
		require.Equal(t, busy, r.Busy() != "", "after %d tries", tries)
		require.LessOrEqual(t, time.Until(r.nextTry), longestPause*6/5)
		r.again.Stop()
	}
	cancel()
	require.Empty(t, r.Busy())
	r.Wait()
}
