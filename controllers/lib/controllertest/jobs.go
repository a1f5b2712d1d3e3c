package controllertest

import (
	"fmt"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CreateJob creates a Job with pods that succeed at once.
func (c *Cluster) CreateJob(name string, edit func(*batchv1.Job)) *batchv1.Job {
	spec := OnePod()
	spec.RestartPolicy = corev1.RestartPolicyNever
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}}}
	EndsAfter(j, 0, 0)
	if edit != nil {
		edit(j)
	}
	j, err := c.Client.BatchV1().Jobs("default").Create(c.Context(), j, metav1.CreateOptions{})
	require.NoError(c, err)
	return j
}

// EndsAfter makes the Job's pods end after d with an exit code.
func EndsAfter(j *batchv1.Job, d time.Duration, code int) {
	j.Spec.Template.Annotations = map[string]string{
		"sim.coxswain.dev/run-for": d.String(), "sim.coxswain.dev/exit-code": strconv.Itoa(code),
	}
}

// Job returns the present state of a Job.
func (c *Cluster) Job(name string) *batchv1.Job {
	j, err := c.Client.BatchV1().Jobs("default").Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	return j
}

// EditJob changes a Job as a user does.
func (c *Cluster) EditJob(name string, change func(*batchv1.Job)) {
	c.Helper()
	Edit(c, c.Client.BatchV1().Jobs("default"), name, change)
}

// JobCondition returns the condition of a type, or a zero condition.
func JobCondition(j *batchv1.Job, t batchv1.JobConditionType) batchv1.JobCondition {
	for _, c := range j.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return batchv1.JobCondition{}
}

// AwaitJob waits until a Job has a condition.
func (c *Clocked) AwaitJob(name string, t batchv1.JobConditionType) *batchv1.Job {
	c.Helper()
	var j *batchv1.Job
	defer func() {
		if c.Failed() {
			c.Logf("job: %+v", j.Status)
			for _, p := range c.Pods() {
				c.Logf("pod %s %s %v finalizers %v deleted %v", p.Name, p.Status.Phase, p.Annotations, p.Finalizers,
					p.DeletionTimestamp)
			}
		}
	}()
	c.Passing(50*time.Millisecond, fmt.Sprintf("job %s is %s", name, t), func() bool {
		j = c.Job(name)
		return JobCondition(j, t).Status == corev1.ConditionTrue
	})
	return j
}
