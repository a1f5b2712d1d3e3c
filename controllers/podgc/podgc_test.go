package podgc

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSurplus_ReturnsTheOldestTerminatedPods(t *testing.T) {
	const threshold = 12500
	start := time.Unix(0, 0)
	var pods []*corev1.Pod
	for i := range threshold + 10 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint(i), CreationTimestamp: metav1.NewTime(start.Add(-time.Duration(i) * time.Minute)),
		}}
		if i%2 == 0 || i < threshold {
			pod.Status.Phase = corev1.PodSucceeded
		}
		pods = append(pods, pod)
	}
	var names []string
	for _, pod := range surplus(pods, threshold) {
		names = append(names, pod.Name)
	}
	require.Equal(t, []string{"12508", "12506", "12504", "12502", "12500"}, names)
	require.Empty(t, surplus(pods[:threshold], threshold))
}
