package events

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestRecorder_CountsWhatRepeats(t *testing.T) {
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

func TestRecorder_DropsWhatIsTooMuchRatherThanBlock(t *testing.T) {
	t.Parallel()
	r := NewRecorder(nil, clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)), slog.Default())
	for range maxQueued + 1 {
		r.Record(Event{About: corev1.ObjectReference{Name: "p"}})
	}
	require.Len(t, r.queue, maxQueued)
}
