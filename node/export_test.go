package node

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// Volumes returns what makes the volumes of a pod in a folder, and makes them anew, for tests that need an API server.
func Volumes(client kubernetes.Interface, c clock.PassiveClock, dir string) func(ctx context.Context, pod *corev1.Pod) error {
	v := &volumes{clock: c}
	return func(ctx context.Context, pod *corev1.Pod) error {
		_, err := v.setUp(ctx, &environment{client: client, pod: pod}, dir)
		return err
	}
}
