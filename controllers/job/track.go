package job

import (
	"context"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// maxUncounted bounds the list of pods in the status.
const maxUncounted = 500

// track counts each pod exactly once, even if the controller is killed at any step (KEP-2307). A pod that has
// ended keeps our finalizer until it is counted:
//
//  1. Its uid is added to status.uncountedTerminatedPods, in one write.
//  2. Its finalizer is removed. It may be deleted from now on.
//  3. Its uid leaves the list and the counter goes up, in one write.
//
// Each step is written before the next begins, so a controller that starts in between sees from the list and the
// finalizers how far the last one came.
func (s *sync) track(ctx context.Context) error {
	s.describe()
	s.countReleased()
	if releasable := s.note(); len(releasable) > 0 {
		if err := s.write(ctx); err != nil {
			return err
		}
		err := s.removeFinalizers(ctx, releasable)
		s.countReleased()
		if err != nil {
			return controller.FirstError(s.write(ctx), err)
		}
	}
	s.finish()
	return s.write(ctx)
}

// describe updates the status, except the counters of ended pods.
func (s *sync) describe() {
	status := &s.job.Status
	ready := int32(0)
	for _, pod := range s.active {
		if controller.PodReady(pod) {
			ready++
		}
	}
	status.Active, status.Ready, status.Terminating = int32(len(s.active)), &ready, new(s.terminating)
	if s.verdict != nil && condition(s.job, s.verdict.Type) == nil {
		status.Conditions = append(status.Conditions, *s.verdict)
	}
	if indexed(s.job) {
		status.CompletedIndexes, status.Succeeded = s.done.String(), int32(s.done.total())
		if s.job.Spec.BackoffLimitPerIndex != nil {
			status.FailedIndexes = new(s.lost.String())
		}
	}
}

// countReleased moves the pods that have lost the finalizer from the list to the counters.
func (s *sync) countReleased() {
	u := s.job.Status.UncountedTerminatedPods
	if u == nil {
		return
	}
	held := map[types.UID]bool{}
	for _, pod := range s.pods {
		if tracked(pod) {
			held[pod.UID] = true
		}
	}
	count := func(uids []types.UID, counter *int32) []types.UID {
		left := slices.DeleteFunc(slices.Clone(uids), func(uid types.UID) bool { return !held[uid] })
		*counter = controller.Int32(int(*counter) + len(uids) - len(left))
		return left
	}
	u.Succeeded = count(u.Succeeded, &s.job.Status.Succeeded)
	u.Failed = count(u.Failed, &s.job.Status.Failed)
}

// note adds ended pods to the list, up to maxUncounted, and returns all pods whose finalizer may be removed
// after the list is stored.
func (s *sync) note() (releasable []*corev1.Pod) {
	if s.job.Status.UncountedTerminatedPods == nil {
		s.job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	u, noted := s.job.Status.UncountedTerminatedPods, s.noted()
	room := func() bool { return len(u.Succeeded)+len(u.Failed) < maxUncounted }
	over := s.verdict != nil || s.job.DeletionTimestamp != nil
	for _, pod := range s.pods {
		switch {
		case !tracked(pod):
		case noted[string(pod.UID)]:
			releasable = append(releasable, pod)
		case pod.Status.Phase == corev1.PodSucceeded:
			// In an Indexed Job indexes are counted, not pods.
			if !indexed(s.job) {
				if !room() {
					continue
				}
				u.Succeeded = append(u.Succeeded, pod.UID)
			}
			releasable = append(releasable, pod)
		case s.isFailed(pod):
			if s.awaited(pod) || !room() {
				continue
			}
			if s.countsAsFailure(pod) {
				u.Failed = append(u.Failed, pod.UID)
			}
			releasable = append(releasable, pod)
		case over && room():
			// A pod that still runs when the Job fails counts as failed.
			if s.verdict != nil && s.verdict.Type == batchv1.JobFailureTarget {
				u.Failed = append(u.Failed, pod.UID)
			}
			releasable = append(releasable, pod)
		}
	}
	return releasable
}

// removeFinalizers removes the pods' finalizers, and drops the released pods from s.pods.
func (s *sync) removeFinalizers(ctx context.Context, pods []*corev1.Pod) error {
	errs := make([]error, len(pods))
	versions := make([]string, len(pods))
	controller.InParallel(len(pods), func(i int) { versions[i], errs[i] = s.removeFinalizer(ctx, pods[i]) })
	released := map[types.UID]bool{}
	for i, pod := range pods {
		if errs[i] == nil {
			released[pod.UID] = true
			s.policyApplied(pod)
			s.Versions.Expect(s.key, s.jobs.pods, versions[i])
		}
	}
	s.pods = slices.DeleteFunc(slices.Clone(s.pods), func(p *corev1.Pod) bool { return released[p.UID] })
	return controller.FirstError(errs...)
}

// finish turns the verdict into the final condition once no pod runs, terminates, or remains to be counted.
func (s *sync) finish() {
	status := &s.job.Status
	if u := status.UncountedTerminatedPods; u != nil && len(u.Succeeded)+len(u.Failed) > 0 {
		return
	}
	if s.verdict == nil || status.Active > 0 || *status.Terminating > 0 || slices.ContainsFunc(s.pods, tracked) {
		return
	}
	if s.verdict.Type == batchv1.JobFailureTarget {
		status.Conditions = append(status.Conditions, *s.newCondition(batchv1.JobFailed, s.verdict.Reason,
			s.verdict.Message))
		return
	}
	status.Conditions = append(status.Conditions, *s.newCondition(batchv1.JobComplete, s.verdict.Reason,
		s.verdict.Message))
	status.CompletionTime = new(metav1.NewTime(s.now))
}

// write stores the status if it has changed, and records the Job's end as an Event.
func (s *sync) write(ctx context.Context) error {
	if equality.Semantic.DeepEqual(*s.was, s.job.Status) {
		return nil
	}
	updated, err := s.client().BatchV1().Jobs(s.job.Namespace).UpdateStatus(ctx, s.job, metav1.UpdateOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	s.Versions.Expect(s.key, s.informer, updated.ResourceVersion)
	s.metrics.written(s.was, updated)
	s.job, s.was = updated.DeepCopy(), updated.Status.DeepCopy()
	switch {
	case condition(s.job, batchv1.JobComplete) != nil:
		if n := s.job.Spec.Completions; n != nil && s.job.Status.Succeeded > *n {
			s.recorder.Event(s.job, corev1.EventTypeWarning, "TooManySucceededPods",
				"Too many succeeded pods running after completion count reached")
		}
		s.recorder.Event(s.job, corev1.EventTypeNormal, "Completed", "Job completed")
	case condition(s.job, batchv1.JobFailed) != nil:
		c := condition(s.job, batchv1.JobFailed)
		s.recorder.Event(s.job, corev1.EventTypeWarning, c.Reason, c.Message)
	}
	return nil
}
