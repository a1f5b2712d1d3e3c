package testenv_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/testenv"
)

type collect = assert.CollectT

// Tests wait for events that take milliseconds; a failing test may take this long.
const (
	longEnough = time.Minute
	tick       = 5 * time.Millisecond
)

func podOf(name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx"}},
			RestartPolicy: corev1.RestartPolicyNever}}
}

// awaitPod waits until a condition holds for a pod of the namespace default.
func awaitPod(t *testing.T, client kubernetes.Interface, name string, holds func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	w, err := client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=" + name, TimeoutSeconds: new(int64(60))})
	require.NoError(t, err)
	defer w.Stop()
	for e := range w.ResultChan() {
		if pod, ok := e.Object.(*corev1.Pod); ok && holds(pod) {
			return pod
		}
	}
	t.Fatalf("the watch of pod %s ended", name)
	return nil
}

func TestWithPodBehavior_DecidesForEachPod(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t, testenv.WithPodBehavior(func(pod *corev1.Pod, script *testenv.PodScript) {
		switch pod.Labels["role"] {
		case "broken":
			script.ImagePullError = errors.New("manifest unknown")
		case "failing":
			script.ExitCode, script.Log = new(int32(3)), "no luck\n"
		}
	}))
	client := kubernetes.NewForConfigOrDie(env.Config)
	pods := client.CoreV1().Pods("default")
	for _, role := range []string{"broken", "failing", "good"} {
		require.EventuallyWithT(t, func(c *collect) { // until the namespace has its account
			_, err := pods.Create(t.Context(), podOf(role, map[string]string{"role": role}), metav1.CreateOptions{})
			require.NoError(c, err)
		}, longEnough, tick)
	}
	awaitPod(t, client, "good", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	failed := awaitPod(t, client, "failing", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	require.EqualValues(t, 3, failed.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	awaitPod(t, client, "broken", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "ErrImagePull"
	})
	text, err := pods.GetLogs("failing", &corev1.PodLogOptions{}).DoRaw(t.Context())
	require.NoError(t, err)
	require.Equal(t, "no luck\n", string(text))
}

func TestWithStorageDelay_MakesWritesWait(t *testing.T) {
	t.Parallel()
	const delay = 20 * time.Millisecond
	env := testenv.StartEnvironment(t, testenv.APIServerOnly(), testenv.WithStorageDelay(0, delay))
	maps := kubernetes.NewForConfigOrDie(env.Config).CoreV1().ConfigMaps("default")
	begin := time.Now()
	_, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begin), delay)
	ctx, cancel := context.WithTimeout(t.Context(), delay/2)
	defer cancel()
	_, err = maps.Create(ctx, configMap("b"), metav1.CreateOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = maps.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
}
