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
	// After failures the next pod waits, twice as long after each.
	failureBackoff    = 10 * time.Second
	maxFailureBackoff = 10 * time.Minute
)

// scale makes pods that are missing or deletes those that are too many; never both in one sync.
func (s *sync) scale(ctx context.Context) error {
	switch {
	case s.verdict != nil || suspended(s.job):
		return s.delete(ctx, s.active)
	case s.job.DeletionTimestamp != nil:
		return nil
	}
	want := s.wantedActive()
	if excess := s.excess(want); len(excess) > 0 {
		return s.delete(ctx, excess[:min(len(excess), burst)])
	}
	missing := want - len(s.active)
	if replacesOnlyFailed(s.job) {
		missing -= int(s.terminating)
	}
	return s.create(ctx, min(missing, burst))
}

// wantedActive is how many pods should run now.
func (s *sync) wantedActive() int {
	parallelism := int(*s.job.Spec.Parallelism)
	if s.job.Spec.Completions == nil {
		// The first success of a work queue ends the making of pods.
		if s.succeeded > 0 {
			return min(len(s.active), parallelism)
		}
		return parallelism
	}
	return max(0, min(parallelism, s.completions()-int(s.succeeded)-s.lost.total()))
}

// excess are the pods to delete: those without an index of their own, and the least useful beyond the number wanted.
func (s *sync) excess(want int) []*corev1.Pod {
	var excess []*corev1.Pod
	rest := slices.SortedFunc(slices.Values(s.active), leastUseful)
	if indexed(s.job) {
		taken := map[int]bool{}
		kept := rest[:0:0]
		for _, pod := range slices.Backward(rest) {
			i := indexOf(pod)
			if i == noIndex || i >= s.completions() || taken[i] {
				excess = append(excess, pod)
				continue
			}
			taken[i] = true
			kept = append(kept, pod)
		}
		slices.Reverse(kept)
		rest = kept
	}
	if n := len(rest) - want; n > 0 {
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
	s.Expected.ExpectDeletions(s.key, uids...)
	errs := make([]error, len(pods))
	controller.InParallel(len(pods), func(i int) { errs[i] = s.deletePod(ctx, pods[i]) })
	gone := map[types.UID]bool{}
	for i, pod := range pods {
		if errs[i] == nil {
			gone[pod.UID] = true
		}
	}
	s.active = slices.DeleteFunc(s.active, func(p *corev1.Pod) bool { return gone[p.UID] })
	s.terminating += int32(len(gone))
	return controller.FirstError(errs...)
}

// deletePod takes a pod away from a Job that goes on. It is let go first: it is not to be counted
// as failed. Pods of a Job that is over are counted.
func (s *sync) deletePod(ctx context.Context, pod *corev1.Pod) error {
	if s.verdict == nil && tracked(pod) {
		version, err := s.removeFinalizer(ctx, pod)
		if err != nil {
			s.Expected.DeletionObserved(s.key, pod.UID)
			return err
		}
		s.Written.Note(s.key, s.jobs.pods, version)
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

// create makes n pods, or as many as are not held back by failures.
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
		// Each index waits for itself; but where all fail, a Job of many could try one after the other at once.
		n = allowed
		s.EnqueueAfter(s.key, wait)
	}
	indexes := slices.Repeat([]int{noIndex}, n)
	if indexed(s.job) {
		indexes = s.pendingIndexes(n)
	}
	made := make([]*corev1.Pod, len(indexes))
	_, err := controller.SlowStart(len(indexes), func(i int) (err error) {
		made[i], err = s.createPod(ctx, indexes[i])
		return err
	})
	for _, pod := range made {
		if pod != nil {
			s.active = append(s.active, pod)
			s.Written.Note(s.key, s.jobs.pods, pod.ResourceVersion)
		}
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

// backoff is until when the next pod must wait: failures since the last success count.
func (s *sync) backoff() time.Time {
	var success, last time.Time
	var failures []time.Time
	for _, pod := range s.pods {
		end := endOf(pod)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && end.After(success):
			success = end
		case pod.DeletionTimestamp != nil && !tracked(pod): // taken away, not failed
		case s.isFailed(pod):
			failures = append(failures, end)
		}
	}
	n := 0
	for _, at := range failures {
		if at.After(success) {
			n++
		}
		if at.After(last) {
			last = at
		}
	}
	return delayed(n, last)
}

// delayed is the end of the delay after n failures, the last of them at a moment. There is none after no failure.
func delayed(n int, last time.Time) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return last.Add(backoff.After(n, failureBackoff, maxFailureBackoff))
}

// pendingIndexes are the first n indexes that have no pod, are not done, and need not wait.
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

// setIndex gives a pod its index in every way it may look for it: by annotation, label, host name and environment.
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

// setFailures hands the account of an index on to its next pod.
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
