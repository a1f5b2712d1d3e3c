package job

import (
	"context"
	"encoding/json"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// orphanPrefix marks the keys of pods; all other keys are Jobs.
const orphanPrefix = "pod:"

func tracked(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)
}

// enqueueOrphan enqueues a pod with our finalizer if there may be no Job that removes it.
func (c *jobs) enqueueOrphan(pod *corev1.Pod) {
	if tracked(pod) && !c.counted(pod) {
		c.Enqueue(orphanPrefix + controller.KeyOf(pod))
	}
}

// enqueueLeftovers enqueues the pods of a Job that no longer counts them.
func (c *jobs) enqueueLeftovers(j *batchv1.Job) {
	pods, err := controller.OwnedOrOrphaned[*corev1.Pod](c.pods, j)
	if err != nil {
		return
	}
	for _, pod := range pods {
		if tracked(pod) && metav1.IsControlledBy(pod, j) {
			c.Enqueue(orphanPrefix + controller.KeyOf(pod))
		}
	}
}

// counted reports whether the cache has a Job that will count the pod.
func (c *jobs) counted(pod *corev1.Pod) bool {
	key, ok := c.dependents.OwnerKey(pod)
	if !ok {
		return false
	}
	obj, ok, err := c.informer.GetStore().GetByKey(key)
	if err != nil || !ok {
		return false
	}
	job, isJob := obj.(*batchv1.Job)
	return isJob && metav1.IsControlledBy(pod, job) && (managedElsewhere(job) || !finished(job))
}

// release removes the finalizer of a pod that no Job will count.
func (c *jobs) release(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	pod, err := c.podList.Pods(namespace).Get(name)
	if err != nil {
		return ignoreNotFound(err)
	}
	if !tracked(pod) || c.counted(pod) {
		return nil
	}
	if c.isNew(ctx, pod) {
		return nil // the event of the Job will enqueue it, and the Job counts the pod
	}
	_, err = c.removeFinalizer(ctx, pod)
	return err
}

// isNew reports whether the pod's Job exists and is merely not in the cache yet.
func (c *jobs) isNew(ctx context.Context, pod *corev1.Pod) bool {
	key, ok := c.dependents.OwnerKey(pod)
	if !ok {
		return false
	}
	if _, cached, _ := c.informer.GetStore().GetByKey(key); cached {
		return false
	}
	ref := metav1.GetControllerOfNoCopy(pod)
	job, err := c.client().BatchV1().Jobs(pod.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	return err == nil && job.UID == ref.UID && !finished(job)
}

// removeFinalizer removes our finalizer and returns the pod's new version, "" if the pod is gone.
func (c *jobs) removeFinalizer(ctx context.Context, pod *corev1.Pod) (version string, err error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pod.UID, "$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer},
	}})
	if err != nil {
		return "", err
	}
	patched, err := c.client().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsConflict(err) && !c.samePod(pod) {
		return "", nil // the pod is gone, or another pod has its name
	}
	if err != nil {
		return "", err
	}
	return patched.ResourceVersion, nil
}

// samePod reports whether the cache has the same pod. It does not read the API server, because the controller
// may not get pods: if the cache is behind, the next try finds a newer one.
func (c *jobs) samePod(pod *corev1.Pod) bool {
	cached, err := c.podList.Pods(pod.Namespace).Get(pod.Name)
	return err == nil && cached.UID == pod.UID
}
