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

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

const (
	// burst bounds how many pods one look creates or deletes.
	burst = 500
	// After failures the next pod waits, twice as long after each.
	failureBackoff    = 10 * time.Second
	maxFailureBackoff = 10 * time.Minute
)

// scale makes pods that are missing or deletes those that are too many; never both in one look.
func (l *look) scale(ctx context.Context) error {
	switch {
	case l.verdict != nil || suspended(l.job):
		return l.delete(ctx, l.active)
	case l.job.DeletionTimestamp != nil:
		return nil
	}
	want := l.wantedActive()
	if excess := l.excess(want); len(excess) > 0 {
		return l.delete(ctx, excess[:min(len(excess), burst)])
	}
	missing := want - len(l.active)
	if replacesOnlyFailed(l.job) {
		missing -= int(l.terminating)
	}
	return l.create(ctx, min(missing, burst))
}

// wantedActive is how many pods should run now.
func (l *look) wantedActive() int {
	parallelism := int(*l.job.Spec.Parallelism)
	if l.job.Spec.Completions == nil {
		// The first success of a work queue ends the making of pods.
		if l.succeeded > 0 {
			return min(len(l.active), parallelism)
		}
		return parallelism
	}
	return max(0, min(parallelism, l.completions()-int(l.succeeded)-l.lost.total()))
}

// excess are the pods to delete: those without an index of their own, and the least useful beyond the number wanted.
func (l *look) excess(want int) []*corev1.Pod {
	var excess []*corev1.Pod
	rest := slices.SortedFunc(slices.Values(l.active), leastUseful)
	if indexed(l.job) {
		taken := map[int]bool{}
		kept := rest[:0:0]
		for _, pod := range slices.Backward(rest) {
			i := indexOf(pod)
			if i == noIndex || i >= l.completions() || taken[i] {
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

func (l *look) delete(ctx context.Context, pods []*corev1.Pod) error {
	if len(pods) == 0 {
		return nil
	}
	uids := make([]types.UID, len(pods))
	for i, pod := range pods {
		uids[i] = pod.UID
	}
	l.expected.ExpectDeletions(l.key, uids...)
	errs := make([]error, len(pods))
	controller.InParallel(len(pods), func(i int) { errs[i] = l.deletePod(ctx, pods[i]) })
	gone := map[types.UID]bool{}
	for i, pod := range pods {
		if errs[i] == nil {
			gone[pod.UID] = true
		}
	}
	l.active = slices.DeleteFunc(l.active, func(p *corev1.Pod) bool { return gone[p.UID] })
	l.terminating += int32(len(gone))
	return controller.FirstError(errs...)
}

// deletePod takes a pod away from a Job that goes on. It is let go first: it is not to be counted
// as failed. What is left of a Job that is over is counted.
func (l *look) deletePod(ctx context.Context, pod *corev1.Pod) error {
	if l.verdict == nil && tracked(pod) {
		version, err := l.removeFinalizer(ctx, pod)
		if err != nil {
			l.expected.DeletionObserved(l.key, pod.UID)
			return err
		}
		l.written.Note(l.key, l.jobs.pods, version)
	}
	err := l.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	switch {
	case err == nil:
		l.recorder.Eventf(l.job, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
		return nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		l.expected.DeletionObserved(l.key, pod.UID)
		return nil
	}
	l.expected.DeletionObserved(l.key, pod.UID)
	l.recorder.Eventf(l.job, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
	return err
}

// create makes n pods, or as many as are not held back by failures.
func (l *look) create(ctx context.Context, n int) error {
	if n <= 0 {
		return nil
	}
	perIndex := l.job.Spec.BackoffLimitPerIndex != nil
	if !perIndex {
		if wait := l.backoff(); wait > 0 {
			l.EnqueueAfter(l.key, wait)
			return nil
		}
	} else if allowed, wait := l.failures.Allow(l.key, n, l.pods); wait > 0 {
		// Each index waits for itself; but where all fail, a Job of many could try one after the other at once.
		n = allowed
		l.EnqueueAfter(l.key, wait)
	}
	indexes := slices.Repeat([]int{noIndex}, n)
	if indexed(l.job) {
		indexes = l.pendingIndexes(n)
	}
	made := make([]*corev1.Pod, len(indexes))
	_, err := controller.SlowStart(len(indexes), func(i int) (err error) {
		made[i], err = l.createPod(ctx, indexes[i])
		return err
	})
	for _, pod := range made {
		if pod != nil {
			l.active = append(l.active, pod)
			l.written.Note(l.key, l.jobs.pods, pod.ResourceVersion)
		}
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

// backoff is how long the next pod must wait: failures since the last success count.
func (l *look) backoff() time.Duration {
	var success, last time.Time
	var failures []time.Time
	for _, pod := range l.pods {
		end := endOf(pod)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && end.After(success):
			success = end
		case pod.DeletionTimestamp != nil && !tracked(pod): // taken away, not failed
		case l.isFailed(pod):
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
	return l.remaining(n, last)
}

// remaining is what is left of the delay after n failures, the last of them at a moment.
func (l *look) remaining(n int, last time.Time) time.Duration {
	if n == 0 {
		return 0
	}
	delay := failureBackoff
	for i := 1; i < n && delay < maxFailureBackoff; i++ {
		delay *= 2
	}
	return max(0, last.Add(min(delay, maxFailureBackoff)).Sub(l.now))
}

// pendingIndexes are the first n indexes that have no pod, are not done, and need not wait.
func (l *look) pendingIndexes(n int) []int {
	taken := map[int]bool{}
	for _, pod := range l.pods {
		if controller.PodActive(pod) || controller.PodTerminating(pod) && replacesOnlyFailed(l.job) {
			taken[indexOf(pod)] = true
		}
	}
	var pending []int
	var soonest time.Duration
	for i := range joined(slices.Concat(l.done, l.lost)).absent(l.completions()) {
		if len(pending) == n {
			break
		}
		if taken[i] {
			continue
		}
		if pod := l.latest[i]; pod != nil && l.job.Spec.BackoffLimitPerIndex != nil {
			if wait := l.remaining(failuresOf(pod)+ignoredFailuresOf(pod)+1, endOf(pod)); wait > 0 {
				if soonest == 0 || wait < soonest {
					soonest = wait
				}
				continue
			}
		}
		pending = append(pending, i)
	}
	if soonest > 0 {
		l.EnqueueAfter(l.key, soonest)
	}
	return pending
}

func (l *look) createPod(ctx context.Context, index int) (*corev1.Pod, error) {
	pod, err := l.client.CoreV1().Pods(l.job.Namespace).Create(ctx, l.newPod(index), metav1.CreateOptions{})
	if err == nil {
		l.recorder.Eventf(l.job, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", pod.Name)
		return pod, nil
	}
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		l.recorder.Eventf(l.job, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
	}
	return nil, err
}

func (l *look) newPod(index int) *corev1.Pod {
	template := l.job.Spec.Template.DeepCopy()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    generateName(l.job.Name, ""),
			Namespace:       l.job.Namespace,
			Labels:          maps.Clone(template.Labels),
			Annotations:     maps.Clone(template.Annotations),
			Finalizers:      append(template.Finalizers, batchv1.JobTrackingFinalizer),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(l.job, Kind)},
		},
		Spec: template.Spec,
	}
	if index != noIndex {
		l.setIndex(pod, index)
	}
	return pod
}

// setIndex tells a pod its index in every way it may ask: by annotation, label, host name and environment.
func (l *look) setIndex(pod *corev1.Pod, index int) {
	text := strconv.Itoa(index)
	pod.GenerateName = generateName(l.job.Name, "-"+text)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = text
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = text
	pod.Spec.Hostname = l.job.Name + "-" + text
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			addIndexEnv(&containers[i])
		}
	}
	if l.job.Spec.BackoffLimitPerIndex != nil {
		l.setFailures(pod, l.latest[index])
	}
}

const indexEnv = "JOB_COMPLETION_INDEX"

func addIndexEnv(c *corev1.Container) {
	if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == indexEnv }) {
		return
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: indexEnv, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
		FieldPath: fmt.Sprintf("metadata.labels['%s']", batchv1.JobCompletionIndexAnnotation),
	}}})
}

// setFailures hands the account of an index on to its next pod.
func (l *look) setFailures(pod, before *corev1.Pod) {
	failures, ignored := 0, 0
	if before != nil {
		failures, ignored = failuresOf(before), ignoredFailuresOf(before)
		if l.countsAsFailure(before) {
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
