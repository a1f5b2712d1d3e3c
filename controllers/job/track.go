package job

import (
	"context"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

// maxUncounted bounds the list of pods in the status.
const maxUncounted = 500

// track counts each pod exactly once, whatever is killed in between (KEP-2307). A pod that has ended
// keeps our finalizer until it is counted, and its uid goes
//
//  1. into status.uncountedTerminatedPods, in one write;
//  2. then the finalizer is removed;
//  3. then the uid leaves the list and the counter goes up, in one write.
//
// Whoever starts in the middle sees from the list and the finalizer how far it had come.
func (l *look) track(ctx context.Context) error {
	l.describe()
	l.countReleased()
	if let := l.note(); len(let) > 0 {
		if err := l.write(ctx); err != nil {
			return err
		}
		err := l.removeFinalizers(ctx, let)
		l.countReleased()
		if err != nil {
			return controller.FirstError(l.write(ctx), err)
		}
	}
	l.finish()
	return l.write(ctx)
}

// describe brings all of the status up to date but the counters of pods that have ended.
func (l *look) describe() {
	s := &l.job.Status
	ready := int32(0)
	for _, pod := range l.active {
		if controller.PodReady(pod) {
			ready++
		}
	}
	s.Active, s.Ready, s.Terminating = int32(len(l.active)), &ready, new(l.terminating)
	if l.verdict != nil && condition(l.job, l.verdict.Type) == nil {
		s.Conditions = append(s.Conditions, *l.verdict)
	}
	if indexed(l.job) {
		s.CompletedIndexes, s.Succeeded = l.done.String(), int32(l.done.total())
		if l.job.Spec.BackoffLimitPerIndex != nil {
			s.FailedIndexes = new(l.lost.String())
		}
	}
}

// countReleased moves pods that have lost the finalizer from the list to the counters.
func (l *look) countReleased() {
	u := l.job.Status.UncountedTerminatedPods
	if u == nil {
		return
	}
	held := map[types.UID]bool{}
	for _, pod := range l.pods {
		if tracked(pod) {
			held[pod.UID] = true
		}
	}
	count := func(uids []types.UID, counter *int32) []types.UID {
		left := slices.DeleteFunc(slices.Clone(uids), func(uid types.UID) bool { return !held[uid] })
		*counter = controller.Int32(int(*counter) + len(uids) - len(left))
		return left
	}
	u.Succeeded = count(u.Succeeded, &l.job.Status.Succeeded)
	u.Failed = count(u.Failed, &l.job.Status.Failed)
}

// note puts pods that have ended on the list and returns all whose finalizer is to be removed.
func (l *look) note() (let []*corev1.Pod) {
	if l.job.Status.UncountedTerminatedPods == nil {
		l.job.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	u, noted := l.job.Status.UncountedTerminatedPods, l.noted()
	room := func() bool { return len(u.Succeeded)+len(u.Failed) < maxUncounted }
	over := l.verdict != nil || l.job.DeletionTimestamp != nil
	for _, pod := range l.pods {
		switch {
		case !tracked(pod):
		case noted[string(pod.UID)]:
			let = append(let, pod)
		case pod.Status.Phase == corev1.PodSucceeded:
			// Of an Indexed Job the index is counted, not the pod.
			if !indexed(l.job) {
				if !room() {
					continue
				}
				u.Succeeded = append(u.Succeeded, pod.UID)
			}
			let = append(let, pod)
		case l.isFailed(pod):
			if l.awaited(pod) || !room() {
				continue
			}
			if l.countsAsFailure(pod) {
				u.Failed = append(u.Failed, pod.UID)
			}
			let = append(let, pod)
		case over && room():
			// What still runs when the Job has failed has failed with it.
			if l.verdict != nil && l.verdict.Type == batchv1.JobFailureTarget {
				u.Failed = append(u.Failed, pod.UID)
			}
			let = append(let, pod)
		}
	}
	return let
}

// removeFinalizers lets pods go, and notes in l.pods which have been.
func (l *look) removeFinalizers(ctx context.Context, pods []*corev1.Pod) error {
	errs := make([]error, len(pods))
	versions := make([]string, len(pods))
	controller.InParallel(len(pods), func(i int) { versions[i], errs[i] = l.removeFinalizer(ctx, pods[i]) })
	released := map[types.UID]bool{}
	for i, pod := range pods {
		if errs[i] == nil {
			released[pod.UID] = true
			l.written.Note(l.key, l.jobs.pods, versions[i])
		}
	}
	l.pods = slices.DeleteFunc(slices.Clone(l.pods), func(p *corev1.Pod) bool { return released[p.UID] })
	return controller.FirstError(errs...)
}

// finish makes the verdict final once no pod is left that runs, ends, or has not been counted.
func (l *look) finish() {
	s := &l.job.Status
	if u := s.UncountedTerminatedPods; u != nil && len(u.Succeeded)+len(u.Failed) > 0 {
		return
	}
	if l.verdict == nil || s.Active > 0 || *s.Terminating > 0 || slices.ContainsFunc(l.pods, tracked) {
		return
	}
	if l.verdict.Type == batchv1.JobFailureTarget {
		s.Conditions = append(s.Conditions, *l.newCondition(batchv1.JobFailed, l.verdict.Reason, l.verdict.Message))
		return
	}
	s.Conditions = append(s.Conditions, *l.newCondition(batchv1.JobComplete, l.verdict.Reason, l.verdict.Message))
	s.CompletionTime = new(metav1.NewTime(l.now))
}

// write stores the status if it differs from the one stored, and tells of the Job's end.
func (l *look) write(ctx context.Context) error {
	if equality.Semantic.DeepEqual(*l.was, l.job.Status) {
		return nil
	}
	updated, err := l.client.BatchV1().Jobs(l.job.Namespace).UpdateStatus(ctx, l.job, metav1.UpdateOptions{})
	if err != nil {
		return client404(err)
	}
	l.written.Note(l.key, l.informer, updated.ResourceVersion)
	l.job, l.was = updated.DeepCopy(), updated.Status.DeepCopy()
	switch {
	case condition(l.job, batchv1.JobComplete) != nil:
		if n := l.job.Spec.Completions; n != nil && l.job.Status.Succeeded > *n {
			l.recorder.Event(l.job, corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached")
		}
		l.recorder.Event(l.job, corev1.EventTypeNormal, "Completed", "Job completed")
	case condition(l.job, batchv1.JobFailed) != nil:
		c := condition(l.job, batchv1.JobFailed)
		l.recorder.Event(l.job, corev1.EventTypeWarning, c.Reason, c.Message)
	}
	return nil
}
