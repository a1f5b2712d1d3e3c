package job

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/backoff"
)

const (
	// burst bounds how many pods one sync creates or deletes.
	burst = 500
	// The next pod after a failure waits for failureBackoff, and twice as long after each further failure.
	failureBackoff    = 10 * time.Second
	maxFailureBackoff = 10 * time.Minute
)

// scale creates missing pods or deletes surplus ones, never both in one sync.
func (s *sync) scale(ctx context.Context) error {
	s.action = "tracking"
	switch {
	case s.verdict != nil || suspended(s.job):
		return s.delete(ctx, s.active)
	case s.job.DeletionTimestamp != nil:
		return nil
	}
	target := s.targetActive()
	if excess := s.excess(target); len(excess) > 0 {
		return s.delete(ctx, excess[:min(len(excess), burst)])
	}
	missing := target - len(s.active)
	if replacesOnlyFailed(s.job) {
		missing -= int(s.terminating)
	}
	return s.create(ctx, min(missing, burst))
}

// targetActive returns how many pods should be active now.
func (s *sync) targetActive() int {
	parallelism := int(*s.job.Spec.Parallelism)
	if s.job.Spec.Completions == nil {
		// The Job is a work queue: after the first success no more pods are created.
		if s.succeeded > 0 {
			return min(len(s.active), parallelism)
		}
		return parallelism
	}
	return max(0, min(parallelism, s.completions()-int(s.succeeded)-s.lost.total()))
}

// excess returns the pods to delete: pods without an index of their own, and the least useful pods beyond
// target.
func (s *sync) excess(target int) []*corev1.Pod {
	var excess []*corev1.Pod
	rest := slices.SortedFunc(slices.Values(s.active), leastUseful)
	if indexed(s.job) {
		taken := map[int]bool{}
		owners := rest[:0:0]
		for _, pod := range slices.Backward(rest) {
			i := indexOf(pod)
			if i == noIndex || i >= s.completions() || taken[i] {
				excess = append(excess, pod)
				continue
			}
			taken[i] = true
			owners = append(owners, pod)
		}
		slices.Reverse(owners)
		rest = owners
	}
	if n := len(rest) - target; n > 0 {
		excess = append(excess, rest[:n]...)
	}
	return excess
}

func (s *sync) delete(ctx context.Context, pods []*corev1.Pod) error {
	if len(pods) == 0 {
		return nil
	}
	uids := make([]types.UID, len(pods))
	for i, pod := range pods {
		uids[i] = pod.UID
	}
	s.action = "pods_deleted"
	s.Expected.ExpectDeletions(s.key, uids...)
	errs := make([]error, len(pods))
	controller.InParallel(len(pods), func(i int) { errs[i] = s.deletePod(ctx, pods[i]) })
	deleted := map[types.UID]bool{}
	for i, pod := range pods {
		if errs[i] == nil {
			deleted[pod.UID] = true
		}
	}
	s.active = slices.DeleteFunc(s.active, func(p *corev1.Pod) bool { return deleted[p.UID] })
	s.terminating += int32(len(deleted))
	return controller.FirstError(errs...)
}

// deletePod deletes a pod. If the Job goes on, the finalizer is removed first, because such a pod must not
// count as failed. Pods of a Job that is over are counted.
func (s *sync) deletePod(ctx context.Context, pod *corev1.Pod) error {
	if s.verdict == nil && tracked(pod) {
		version, err := s.removeFinalizer(ctx, pod)
		if err != nil {
			s.Expected.DeletionObserved(s.key, pod.UID)
			return err
		}
		s.Versions.Expect(s.key, s.jobs.pods, version)
	}
	err := s.client().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		*metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	switch {
	case err == nil:
		s.recorder.Eventf(s.job, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
		return nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		s.Expected.DeletionObserved(s.key, pod.UID)
		return nil
	}
	s.Expected.DeletionObserved(s.key, pod.UID)
	s.recorder.Eventf(s.job, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
	return err
}

// create creates up to n pods, as far as the back-off after failures allows.
func (s *sync) create(ctx context.Context, n int) error {
	if n <= 0 {
		return nil
	}
	perIndex := s.job.Spec.BackoffLimitPerIndex != nil
	if !perIndex {
		if end := s.backoff(); end.After(s.now) {
			s.EnqueueAt(s.key, end)
			return nil
		}
	} else if allowed, wait := s.Failures.Allow(s.key, n, s.pods); wait > 0 {
		// Each index has a back-off of its own. This limit covers a Job whose indexes all fail, which could
		// otherwise try one index after the other without delay.
		n = allowed
		s.EnqueueAfter(s.key, wait)
	}
	indexes := slices.Repeat([]int{noIndex}, n)
	if indexed(s.job) {
		indexes = s.pendingIndexes(n)
	}
	created := make([]*corev1.Pod, len(indexes))
	s.action = "pods_created"
	tried, err := controller.SlowStart(len(indexes), func(i int) (err error) {
		created[i], err = s.createPod(ctx, indexes[i])
		return err
	})
	done := 0
	for _, pod := range created {
		if pod != nil {
			done++
			s.active = append(s.active, pod)
			s.Versions.Expect(s.key, s.jobs.pods, pod.ResourceVersion)
		}
	}
	s.podsCreated(done, tried-done)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

// backoff returns the time until which the next pod must wait, by the failures since the last success.
func (s *sync) backoff() time.Time {
	var success, last time.Time
	var failures []time.Time
	for _, pod := range s.pods {
		end := endOf(pod)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && end.After(success):
			success = end
		case pod.DeletionTimestamp != nil && !tracked(pod): // deleted by scale, not failed
		case s.isFailed(pod):
			failures = append(failures, end)
		}
	}
	n := 0
	for _, failure := range failures {
		if failure.After(success) {
			n++
		}
		if failure.After(last) {
			last = failure
		}
	}
	return delayed(n, last)
}

// delayed returns the end of the delay after n failures. last is the time of the last one. It is zero if n is 0.
func delayed(n int, last time.Time) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return last.Add(backoff.After(n, failureBackoff, maxFailureBackoff))
}

// pendingIndexes returns the first n indexes that have no pod, are not finished, and are not in back-off. It
// enqueues the Job for the end of the shortest back-off.
func (s *sync) pendingIndexes(n int) []int {
	taken := map[int]bool{}
	for _, pod := range s.pods {
		if controller.PodActive(pod) || controller.PodTerminating(pod) && replacesOnlyFailed(s.job) {
			taken[indexOf(pod)] = true
		}
	}
	var pending []int
	var soonest time.Time
	for i := range joined(slices.Concat(s.done, s.lost)).absent(s.completions()) {
		if len(pending) == n {
			break
		}
		if taken[i] {
			continue
		}
		if pod := s.latest[i]; pod != nil && s.job.Spec.BackoffLimitPerIndex != nil {
			if end := delayed(failuresOf(pod)+ignoredFailuresOf(pod)+1, endOf(pod)); end.After(s.now) {
				if soonest.IsZero() || end.Before(soonest) {
					soonest = end
				}
				continue
			}
		}
		pending = append(pending, i)
	}
	if !soonest.IsZero() {
		s.EnqueueAt(s.key, soonest)
	}
	return pending
}

func (s *sync) createPod(ctx context.Context, index int) (*corev1.Pod, error) {
	pod, err := s.client().CoreV1().Pods(s.job.Namespace).Create(ctx, s.newPod(index), metav1.CreateOptions{})
	if err == nil {
		s.recorder.Eventf(s.job, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", pod.Name)
		return pod, nil
	}
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		s.recorder.Eventf(s.job, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
	}
	return nil, err
}

func (s *sync) newPod(index int) *corev1.Pod {
	template := s.job.Spec.Template.DeepCopy()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    generateName(s.job.Name, ""),
			Namespace:       s.job.Namespace,
			Labels:          maps.Clone(template.Labels),
			Annotations:     maps.Clone(template.Annotations),
			Finalizers:      append(template.Finalizers, batchv1.JobTrackingFinalizer),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.job, Kind)},
		},
		Spec: template.Spec,
	}
	if index != noIndex {
		s.setIndex(pod, index)
	}
	return pod
}

// setIndex gives a pod its index in each form that a program may read: annotation, label, host name and
// environment.
func (s *sync) setIndex(pod *corev1.Pod, index int) {
	text := strconv.Itoa(index)
	pod.GenerateName = generateName(s.job.Name, "-"+text)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = text
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = text
	pod.Spec.Hostname = s.job.Name + "-" + text
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			addIndexEnv(&containers[i])
		}
	}
	if s.job.Spec.BackoffLimitPerIndex != nil {
		s.setFailures(pod, s.latest[index])
	}
}

const indexEnv = "JOB_COMPLETION_INDEX"

func addIndexEnv(c *corev1.Container) {
	if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == indexEnv }) {
		return
	}
	c.Env = append(c.Env,
		corev1.EnvVar{Name: indexEnv, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
			FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation),
		}}})
}

// setFailures copies the failure counts of an index to its next pod, with before, its last failed pod,
// included.
func (s *sync) setFailures(pod, before *corev1.Pod) {
	failures, ignored := 0, 0
	if before != nil {
		failures, ignored = failuresOf(before), ignoredFailuresOf(before)
		if s.countsAsFailure(before) {
			failures++
		} else {
			ignored++
		}
	}
	pod.Annotations[batchv1.JobIndexFailureCountAnnotation] = strconv.Itoa(failures)
	if ignored > 0 {
		pod.Annotations[batchv1.JobIndexIgnoredFailureCountAnnotation] = strconv.Itoa(ignored)
	}
}

// maxPrefix leaves room for the five characters that the server adds.
const maxPrefix = 63 - 5

func generateName(job, suffix string) string {
	suffix += "-"
	return job[:min(len(job), maxPrefix-len(suffix))] + suffix
}
