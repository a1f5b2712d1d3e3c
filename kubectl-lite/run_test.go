package kubectllite

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestRun_ExitCodeIsTheContainers(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.Status.Phase = "default", "one", corev1.PodFailed
	_, code := explainError(exitOf(pod))
	require.Equal(t, 1, code, "a pod that does not tell how it ended")
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}}}}
	message, code := explainError(exitOf(pod))
	require.Equal(t, 3, code)
	require.Contains(t, message, "pod default/one terminated (Error)")
	pod.Status.Phase = corev1.PodSucceeded
	require.NoError(t, exitOf(pod))
}
