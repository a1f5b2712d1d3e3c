package controllers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/testenv"
)

// everyMinute makes a CronJob that runs each minute; its Jobs' pods run for ever.
func (c *cluster) everyMinute(name string, edit func(*batchv1.CronJob)) *batchv1.CronJob {
	cj := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.CronJobSpec{Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"cron": name}},
			Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "one"}}}}},
		}},
	}
	if edit != nil {
		edit(cj)
	}
	cj, err := c.client.BatchV1().CronJobs("default").Create(c.ctx, cj, metav1.CreateOptions{})
	require.NoError(c, err)
	return cj
}

func runsAtOnce(cj *batchv1.CronJob) {
	cj.Spec.JobTemplate.Spec.Template.Annotations = map[string]string{"sim.coxswain.dev/exit-code": "0"}
}

func (c *cluster) cronJob(name string) *batchv1.CronJob {
	cj, err := c.client.BatchV1().CronJobs("default").Get(c.ctx, name, metav1.GetOptions{})
	require.NoError(c, err)
	return cj
}

func (c *cluster) jobNames() []string {
	list, err := c.client.BatchV1().Jobs("default").List(c.ctx, metav1.ListOptions{})
	require.NoError(c, err)
	names := []string{}
	for _, j := range list.Items {
		names = append(names, j.Name)
	}
	slices.Sort(names)
	return names
}

// nextMinute moves the clock to just after a full minute and says which it is. No object was made
// after that: the API server goes by its own clock, which may be ahead of ours.
func (c *clocked) nextMinute() time.Time {
	now := c.Now()
	if real := time.Now(); real.After(now) {
		now = real
	}
	at := now.Truncate(time.Minute).Add(time.Minute)
	c.SetTime(at.Add(200 * time.Millisecond))
	return at
}

// newCron has a clock that is behind the API server's until nextMinute: were it ahead, the minute before a CronJob's first
// might begin between the two.
func newCron(t testing.TB) *clocked {
	c := newClockedAt(t, testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0)))
	c.names = []string{"cronjob", "job", "garbagecollector"}
	c.SetTime(c.Now().Add(-2 * time.Minute))
	c.restart()
	c.startNodes(node.Options{Count: 1})
	c.awaitReadyNodes(1)
	return c
}

func nameAt(name string, at time.Time) string { return fmt.Sprintf("%s-%d", name, at.Unix()/60) }

func TestCronJob_RunsEveryMinute(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	c.everyMinute("hello", runsAtOnce)
	first := c.nextMinute()
	c.reaches("the first run is over", func() bool { s := c.cronJob("hello").Status; return s.LastSuccessfulTime != nil && len(s.Active) == 0 })
	require.True(t, first.Equal(c.cronJob("hello").Status.LastScheduleTime.Time))
	j := c.job(nameAt("hello", first))
	require.Equal(t, "hello", j.Labels["cron"])
	require.True(t, metav1.IsControlledBy(j, c.cronJob("hello")))
	at, err := time.Parse(time.RFC3339, j.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
	require.NoError(t, err)
	require.True(t, first.Equal(at))
	second := c.nextMinute()
	c.reaches("two runs", func() bool {
		return slices.Equal(c.jobNames(), []string{nameAt("hello", first), nameAt("hello", second)})
	})
	c.awaitEvent("SuccessfulCreate", "Created job "+j.Name)
	c.awaitEvent("SawCompletedJob", "Saw completed job: "+j.Name+", condition: Complete")
}

func TestCronJob_ConcurrencyPolicy(t *testing.T) {
	for _, policy := range []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := newCron(t)
			c.everyMinute("slow", func(cj *batchv1.CronJob) { cj.Spec.ConcurrencyPolicy = policy })
			first := nameAt("slow", c.nextMinute())
			c.reaches("one runs", func() bool { return len(c.cronJob("slow").Status.Active) == 1 })
			second := nameAt("slow", c.nextMinute())
			switch policy {
			case batchv1.AllowConcurrent:
				c.reaches("two run", func() bool { return len(c.cronJob("slow").Status.Active) == 2 })
			case batchv1.ForbidConcurrent:
				c.awaitEvent("JobAlreadyActive", "Not starting job")
				require.Equal(t, []string{first}, c.jobNames())
				// A restart in between changes nothing, and once the first is gone the next may run.
				c.restart()
				require.NoError(t, c.client.BatchV1().Jobs("default").Delete(c.ctx, first, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}))
				c.reaches("the second runs", func() bool { return slices.Equal(c.jobNames(), []string{second}) })
			case batchv1.ReplaceConcurrent:
				c.reaches("replaced", func() bool { return slices.Equal(c.jobNames(), []string{second}) })
				require.Len(t, c.cronJob("slow").Status.Active, 1)
			}
		})
	}
}

func TestCronJob_KeepsItsHistoryWithinLimits(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	c.everyMinute("hello", func(cj *batchv1.CronJob) { runsAtOnce(cj); cj.Spec.SuccessfulJobsHistoryLimit = new(int32(2)) })
	var names []string
	for range 4 {
		names = append(names, nameAt("hello", c.nextMinute()))
		c.reaches("it is over", func() bool {
			s := c.cronJob("hello").Status
			return s.LastScheduleTime != nil && nameAt("hello", s.LastScheduleTime.Time) == names[len(names)-1] && len(s.Active) == 0
		})
	}
	c.reaches("the last two", func() bool { return slices.Equal(c.jobNames(), names[2:]) })
}

func TestCronJob_StartingDeadlineAndSuspension(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	suspended := func(yes bool) {
		editing(c.cluster, "late", c.client.BatchV1().CronJobs("default"), func(cj *batchv1.CronJob) { cj.Spec.Suspend = &yes })
	}
	c.everyMinute("late", func(cj *batchv1.CronJob) {
		runsAtOnce(cj)
		cj.Spec.Schedule = "0 * * * *"
		cj.Spec.StartingDeadlineSeconds, cj.Spec.Suspend = new(int64(120)), new(true)
	})
	hour := c.Now().Truncate(time.Hour).Add(2 * time.Hour)
	c.SetTime(hour.Add(10 * time.Minute))
	suspended(false)
	// The time passed too long ago. Another CronJob, made later, shows that this one was looked at.
	c.everyMinute("other", runsAtOnce)
	c.nextMinute()
	c.reaches("the other runs", func() bool { return len(c.jobNames()) > 0 })
	for _, name := range c.jobNames() {
		require.True(t, strings.HasPrefix(name, "other-"), name)
	}
	c.SetTime(hour.Add(time.Hour + time.Minute))
	c.reaches("late, but in time", func() bool { return slices.Contains(c.jobNames(), nameAt("late", hour.Add(time.Hour))) })
}

func TestCronJob_KnowsTimeZones(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	kathmandu, err := time.LoadLocation("Asia/Kathmandu") // 5 h 45 min before Greenwich
	require.NoError(t, err)
	c.everyMinute("tea", func(cj *batchv1.CronJob) {
		runsAtOnce(cj)
		cj.Spec.Schedule, cj.Spec.TimeZone = "0 16 * * *", new("Asia/Kathmandu")
	})
	day := c.Now().In(kathmandu).AddDate(0, 0, 1)
	at := time.Date(day.Year(), day.Month(), day.Day(), 16, 0, 0, 0, kathmandu)
	c.SetTime(at.Add(time.Second))
	c.reaches("it runs", func() bool { return len(c.jobNames()) == 1 })
	require.Equal(t, nameAt("tea", at), c.jobNames()[0])
	require.Equal(t, at.Format(time.RFC3339), c.job(nameAt("tea", at)).Annotations[batchv1.CronJobScheduledTimestampAnnotation])
}

func TestCronJob_MakesUpForTheLastOfManyMissedTimes(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	c.everyMinute("hello", runsAtOnce)
	first := c.nextMinute()
	c.reaches("the first run", func() bool { return len(c.jobNames()) == 1 })
	c.stop()
	at := c.Now().Truncate(time.Minute).Add(10 * time.Hour)
	c.SetTime(at.Add(time.Second))
	c.restart()
	c.reaches("one more", func() bool {
		return slices.Equal(c.jobNames(), []string{nameAt("hello", first), nameAt("hello", at)})
	})
	c.awaitEvent("TooManyMissedTimes", "too many missed start times")
}
