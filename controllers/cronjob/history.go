package cronjob

import (
	"cmp"
	"context"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
)

// cleanUp deletes the oldest finished Jobs beyond the history limits.
func (s *sync) cleanUp(ctx context.Context) error {
	if err := s.truncate(ctx, batchv1.JobFailed, s.cj.Spec.FailedJobsHistoryLimit); err != nil {
		return err
	}
	return s.truncate(ctx, batchv1.JobComplete, s.cj.Spec.SuccessfulJobsHistoryLimit)
}

func (s *sync) truncate(ctx context.Context, outcome batchv1.JobConditionType, limit *int32) error {
	if limit == nil {
		return nil
	}
	var jobs []*batchv1.Job
	for _, j := range s.children {
		if end(j) == outcome && j.DeletionTimestamp == nil {
			jobs = append(jobs, j)
		}
	}
	slices.SortFunc(jobs, olderFirst)
	for _, j := range jobs[:max(0, len(jobs)-int(*limit))] {
		if err := s.deleteJob(ctx, j.Name, string(j.UID)); err != nil {
			return err
		}
		s.children = slices.DeleteFunc(s.children, func(o *batchv1.Job) bool { return o == j })
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
