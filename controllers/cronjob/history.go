package cronjob

import (
	"cmp"
	"context"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
)

// cleanUp deletes the oldest finished Jobs beyond the history limits.
func (l *look) cleanUp(ctx context.Context) error {
	if err := l.keep(ctx, batchv1.JobFailed, l.cj.Spec.FailedJobsHistoryLimit); err != nil {
		return err
	}
	return l.keep(ctx, batchv1.JobComplete, l.cj.Spec.SuccessfulJobsHistoryLimit)
}

func (l *look) keep(ctx context.Context, how batchv1.JobConditionType, limit *int32) error {
	if limit == nil {
		return nil
	}
	var jobs []*batchv1.Job
	for _, j := range l.children {
		if end(j) == how && j.DeletionTimestamp == nil {
			jobs = append(jobs, j)
		}
	}
	slices.SortFunc(jobs, olderFirst)
	for _, j := range jobs[:max(0, len(jobs)-int(*limit))] {
		if err := l.deleteJob(ctx, j.Name, string(j.UID)); err != nil {
			return err
		}
		l.children = slices.DeleteFunc(l.children, func(o *batchv1.Job) bool { return o == j })
	}
	return nil
}

func olderFirst(a, b *batchv1.Job) int {
	started := func(j *batchv1.Job) int64 {
		if j.Status.StartTime == nil {
			return j.CreationTimestamp.Unix()
		}
		return j.Status.StartTime.Unix()
	}
	return cmp.Or(cmp.Compare(started(a), started(b)), cmp.Compare(a.Name, b.Name))
}
