package controllers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTTLAfterFinished(t *testing.T) {
	t.Parallel()
	c := newClocked(t, 1, "job", "ttl-after-finished", "garbagecollector")
	gone := func(name string) func() bool {
		return func() bool {
			_, err := c.client.BatchV1().Jobs("default").Get(c.ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}
	}
	c.startJob("stays", nil)
	c.startJob("goes", func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(3600)) })
	c.startJob("goes-later", func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(3600)) })
	c.startJob("goes-at-once", func(j *batchv1.Job) {
		ends(j, 10*time.Minute, 1)
		j.Spec.BackoffLimit, j.Spec.TTLSecondsAfterFinished = new(int32(0)), new(int32(0))
	})
	for _, name := range []string{"stays", "goes", "goes-later"} {
		c.awaitJob(name, batchv1.JobComplete)
	}
	c.editJob("goes-later", func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(7200)) })
	c.reaches("the last one runs", func() bool { s := c.job("goes-at-once").Status; return s.Ready != nil && *s.Ready == 1 })
	c.Step(10 * time.Minute)
	c.reaches("the failed one is gone", gone("goes-at-once"))
	require.False(t, gone("goes")())
	c.Step(time.Hour)
	c.reaches("gone", gone("goes"))
	require.False(t, gone("goes-later")(), "it was given more time")
	c.Step(time.Hour)
	c.reaches("gone", gone("goes-later"))
	require.False(t, gone("stays")())
	c.reaches("the pods as well", func() bool { return len(c.pods()) == 1 })
}
