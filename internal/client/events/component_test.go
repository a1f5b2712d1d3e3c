package events

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clientgotesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestAs_MatchesClientGosRecorder(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	now := time.Unix(1_800_000_000, 0)
	r := NewRecorder(func(string) kubernetes.Interface { return client }, clocktesting.NewFakeClock(now),
		slog.Default())
	ctx, cancel := context.WithCancel(t.Context())
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "apps", UID: "1", ResourceVersion: "7"}}
	r.As("web").AnnotatedEventf(pod, map[string]string{"a": "b"}, corev1.EventTypeNormal, "Scaled", "to %d", 3)
	require.Empty(t, r.Busy(), "nothing is written before Start")
	r.Start(ctx)
	require.Eventually(t, func() bool { return r.Busy() == "" }, time.Minute, time.Millisecond)
	events, err := client.CoreV1().Events("apps").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, events.Items, 1)
	e := events.Items[0]
	require.Equal(t, corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "apps", Name: "p", UID: "1",
		ResourceVersion: "7"}, e.InvolvedObject)
	require.Equal(t, "web", e.Source.Component)
	require.Equal(t, "to 3", e.Message)
	require.Equal(t, map[string]string{"a": "b"}, e.Annotations)
	require.True(t, e.FirstTimestamp.Time.Equal(now))
	cancel()
	r.Wait()
}

func TestBusy_CountsUnwrittenEvents(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset()
	writing, goOn := make(chan struct{}, 2), make(chan struct{})
	client.PrependReactor("create", "events", func(clientgotesting.Action) (bool, runtime.Object, error) {
		writing <- struct{}{}
		<-goOn
		return false, nil, nil
	})
	r := NewRecorder(func(string) kubernetes.Interface { return client }, clocktesting.NewFakeClock(time.Now()),
		slog.Default())
	ctx, cancel := context.WithCancel(t.Context())
	r.Start(ctx)
	for _, name := range []string{"a", "b"} {
		r.Record(Event{About: corev1.ObjectReference{Kind: "Pod", Namespace: "apps", Name: name}, Reason: "Started"})
	}
	<-writing
	require.Equal(t, "2 Events are not written yet", r.Busy())
	goOn <- struct{}{}
	<-writing
	require.Equal(t, "1 Events are not written yet", r.Busy())
	goOn <- struct{}{}
	require.Eventually(t, func() bool { return r.Busy() == "" }, time.Minute, time.Millisecond)
	cancel()
	r.Wait()
}
