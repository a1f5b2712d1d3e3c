// Package ttlafterfinished deletes Jobs with their pods ttlSecondsAfterFinished after they have finished.
package ttlafterfinished

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

type ttl struct {
	*controller.Controller
	client func() kubernetes.Interface
	jobs   batchlisters.JobLister
	clock  clock.PassiveClock
	delay  func() *prometheus.HistogramVec
}

// New returns the controller. Its keys are Jobs.
func New(env *controller.Env) (*controller.Controller, error) {
	jobs := env.Informers.Batch().V1().Jobs()
	t := &ttl{client: env.Client, jobs: jobs.Lister(), clock: env.Clock,
		delay: env.Metrics.Histogram("ttl_after_finished_controller_job_deletion_duration_seconds",
			"The time it took to delete the job since it became eligible for deletion",
			prometheus.ExponentialBuckets(0.1, 2, 14))}
	t.Controller = controller.New(env, "ttlafterfinished", t.reconcile)
	wake := func(j *batchv1.Job) {
		if _, ok := expiry(j); ok {
			t.EnqueueObject(j)
		}
	}
	controller.Watch(t.Controller, jobs.Informer(), controller.Handler[*batchv1.Job]{
		Add: wake, Update: func(_, j *batchv1.Job) { wake(j) },
	})
	return t.Controller, nil
}

// expiry returns when a finished Job expires; ok is false if it has not finished or has no TTL.
func expiry(j *batchv1.Job) (expiration time.Time, ok bool) {
	if j.Spec.TTLSecondsAfterFinished == nil || j.DeletionTimestamp != nil {
		return expiration, false
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue &&
			!c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second), true
		}
	}
	return expiration, false
}

func (t *ttl) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	cached, err := t.jobs.Jobs(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !t.due(key, cached) {
		return err
	}
	// A deletion cannot be undone, and the TTL may have been raised: read the Job from the API server.
	job, err := t.client().BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !t.due(key, job) {
		return err
	}
	err = t.client().BatchV1().Jobs(namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationForeground),
		Preconditions:     &metav1.Preconditions{UID: &job.UID, ResourceVersion: &job.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete job %s: %w", key, err)
	}
	if expiration, _ := expiry(job); err == nil {
		t.delay().WithLabelValues().Observe(t.clock.Since(expiration).Seconds())
	}
	return nil
}

// due reports whether the Job has expired. If it expires later, due enqueues it for that time.
func (t *ttl) due(key string, j *batchv1.Job) bool {
	expiration, ok := expiry(j)
	if !ok {
		return false
	}
	if expiration.After(t.clock.Now()) {
		t.EnqueueAt(key, expiration)
		return false
	}
	return true
}
