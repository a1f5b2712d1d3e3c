package ttlafterfinished_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func TestTTLAfterFinished(t *testing.T) {
	t.Parallel()
	c := controllertest.NewClocked(t, 1, "job", "ttl-after-finished", "garbagecollector")
	deleted := func(name string) func() bool {
		return func() bool {
			_, err := c.Client.BatchV1().Jobs("default").Get(c.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}
	}
	c.CreateJob("stays", nil)
	c.CreateJob("goes", func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(3600)) })
	c.CreateJob("goes-later", func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(3600)) })
	c.CreateJob("goes-at-once", func(j *batchv1.Job) {
		controllertest.EndsAfter(j, 10*time.Minute, 1)
		j.Spec.BackoffLimit, j.Spec.TTLSecondsAfterFinished = new(int32(0)), new(int32(0))
	})
	for _, name := range []string{"stays", "goes", "goes-later"} {
		c.AwaitJob(name, batchv1.JobComplete)
	}
	c.EditJob("goes-later", func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(7200)) })
	c.Reaches("the last one runs", func() bool {
		s := c.Job("goes-at-once").Status
		return s.Ready != nil && *s.Ready == 1
	})
	c.Step(10 * time.Minute)
	c.Reaches("the failed Job is deleted", deleted("goes-at-once"))
	require.False(t, deleted("goes")())
	c.Step(time.Hour)
	c.Reaches("the Job is deleted", deleted("goes"))
	require.False(t, deleted("goes-later")(), "its TTL was raised")
	c.Step(time.Hour)
	c.Reaches("the Job with the raised TTL is deleted", deleted("goes-later"))
	require.False(t, deleted("stays")())
	c.Reaches("their pods are deleted as well", func() bool { return len(c.Pods()) == 1 })
	c.AwaitMetric(3, "ttl_after_finished_controller_job_deletion_duration_seconds")
}
