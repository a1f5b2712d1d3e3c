package node

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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

// WatchedVolumes are volumes of pods whose ConfigMaps and Secrets are watched, for tests that need an API server.
type WatchedVolumes struct {
	client  kubernetes.Interface
	clock   clock.PassiveClock
	watches sync.WaitGroup
	objects *references
}

// NewWatchedVolumes calls changed with the name of a pod whose volumes are to be made anew. Its watches end with ctx.
func NewWatchedVolumes(ctx context.Context, client kubernetes.Interface, c clock.PassiveClock, changed func(pod string)) *WatchedVolumes {
	w := &WatchedVolumes{client: client, clock: c}
	w.objects = newReferences(ctx, &w.watches, func(pod podKey) { changed(pod.name) })
	return w
}

// SetUp makes a pod's volumes in a folder.
func (w *WatchedVolumes) SetUp(ctx context.Context, pod *corev1.Pod, dir string) error {
	w.objects.watch(w.client, pod)
	_, err := (&volumes{clock: w.clock}).setUp(ctx, &environment{client: w.client, references: w.objects, pod: pod}, dir)
	return err
}

// Complete reports that nothing of a pod has to be polled.
func (w *WatchedVolumes) Complete(pod *corev1.Pod) bool { return w.objects.complete(pod) }

// Release ends what only this pod needs.
func (w *WatchedVolumes) Release(pod types.UID) { w.objects.release(pod) }

// Watches are how many objects are watched, or held.
func (w *WatchedVolumes) Watches() int {
	w.objects.mu.Lock()
	defer w.objects.mu.Unlock()
	return len(w.objects.byKey)
}

// Wait waits for the watches' end.
func (w *WatchedVolumes) Wait() { w.watches.Wait() }
