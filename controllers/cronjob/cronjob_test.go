package cronjob_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/node"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cluster adds helpers for CronJobs to a controllertest.Clocked.
type cluster struct{ *controllertest.Clocked }

// everyMinute creates a CronJob that runs every minute; its Jobs' pods never end.
func (c cluster) everyMinute(name string, edit func(*batchv1.CronJob)) *batchv1.CronJob {
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
	cj, err := c.Client.BatchV1().CronJobs("default").Create(c.Context(), cj, metav1.CreateOptions{})
	require.NoError(c, err)
	return cj
}

func runsAtOnce(cj *batchv1.CronJob) {
	cj.Spec.JobTemplate.Spec.Template.Annotations = map[string]string{"sim.coxswain.dev/exit-code": "0"}
}

func (c cluster) cronJob(name string) *batchv1.CronJob {
	cj, err := c.Client.BatchV1().CronJobs("default").Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	return cj
}

func (c cluster) jobNames() []string {
	list, err := c.Client.BatchV1().Jobs("default").List(c.Context(), metav1.ListOptions{})
	require.NoError(c, err)
	names := []string{}
	for _, j := range list.Items {
		names = append(names, j.Name)
	}
	slices.Sort(names)
	return names
}

// nextMinute advances the clock to just after a full minute and returns that minute. No object was created
// after it: creation times come from the API server's own clock, which may be ahead of the test's.
func (c cluster) nextMinute() time.Time {
	now := c.Now()
	if real := time.Now(); real.After(now) {
		now = real
	}
	minute := now.Truncate(time.Minute).Add(time.Minute)
	c.SetTime(minute.Add(200 * time.Millisecond))
	return minute
}

// newCron starts a cluster whose clock is behind the API server's until nextMinute. If it were ahead, the
// minute before a CronJob's first might begin between the two.
func newCron(t testing.TB) cluster {
	config := testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0))
	c := cluster{controllertest.ClockedAt(t, config, "cronjob", "job", "garbagecollector")}
	c.SetTime(c.Now().Add(-2 * time.Minute))
	c.Restart()
	c.StartNodes(node.Options{Count: 1})
	c.AwaitReadyNodes(1)
	return c
}

func nameAt(name string, due time.Time) string { return fmt.Sprintf("%s-%d", name, due.Unix()/60) }

func TestCronJob_RunsEveryMinute(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	c.everyMinute("hello", runsAtOnce)
	first := c.nextMinute()
	c.Reaches("the first run is over", func() bool {
		s := c.cronJob("hello").Status
		return s.LastSuccessfulTime != nil && len(s.Active) == 0
	})
	require.True(t, first.Equal(c.cronJob("hello").Status.LastScheduleTime.Time))
	j := c.Job(nameAt("hello", first))
	require.Equal(t, "hello", j.Labels["cron"])
	require.True(t, metav1.IsControlledBy(j, c.cronJob("hello")))
	scheduled, err := time.Parse(time.RFC3339, j.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
	require.NoError(t, err)
	require.True(t, first.Equal(scheduled))
	second := c.nextMinute()
	c.Reaches("two runs", func() bool {
		return slices.Equal(c.jobNames(), []string{nameAt("hello", first), nameAt("hello", second)})
	})
	c.AwaitEvent("SuccessfulCreate", "Created job "+j.Name)
	c.AwaitEvent("SawCompletedJob", "Saw completed job: "+j.Name+", condition: Complete")
	c.AwaitMetric(2, "cronjob_controller_job_creation_skew_duration_seconds")
}

func TestCronJob_ConcurrencyPolicy(t *testing.T) {
	for _, policy := range []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent,
		batchv1.ReplaceConcurrent} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := newCron(t)
			c.everyMinute("slow", func(cj *batchv1.CronJob) { cj.Spec.ConcurrencyPolicy = policy })
			first := nameAt("slow", c.nextMinute())
			c.Reaches("one runs", func() bool { return len(c.cronJob("slow").Status.Active) == 1 })
			second := nameAt("slow", c.nextMinute())
			switch policy {
			case batchv1.AllowConcurrent:
				c.Reaches("two run", func() bool { return len(c.cronJob("slow").Status.Active) == 2 })
			case batchv1.ForbidConcurrent:
				c.AwaitEvent("JobAlreadyActive", "Not starting job")
				require.Equal(t, []string{first}, c.jobNames())
				// A restart in between has no effect, and the next Job may run once the first is deleted.
				c.Restart()
				require.NoError(t, c.Client.BatchV1().Jobs("default").Delete(c.Context(), first,
					metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}))
				c.Reaches("the second runs", func() bool { return slices.Equal(c.jobNames(), []string{second}) })
			case batchv1.ReplaceConcurrent:
				// The status is written after the Job.
				c.Reaches("replaced", func() bool {
					active := c.cronJob("slow").Status.Active
					return slices.Equal(c.jobNames(), []string{second}) && len(active) == 1 && active[0].Name == second
				})
			}
		})
	}
}

func TestCronJob_TruncatesItsHistory(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	c.everyMinute("hello", func(cj *batchv1.CronJob) {
		runsAtOnce(cj)
		cj.Spec.SuccessfulJobsHistoryLimit = new(int32(2))
	})
	var names []string
	for range 4 {
		names = append(names, nameAt("hello", c.nextMinute()))
		c.Reaches("it is over", func() bool {
			s := c.cronJob("hello").Status
			return s.LastScheduleTime != nil && nameAt("hello", s.LastScheduleTime.Time) == names[len(names)-1] &&
				len(s.Active) == 0
		})
	}
	c.Reaches("the last two", func() bool { return slices.Equal(c.jobNames(), names[2:]) })
}

func TestCronJob_StartingDeadlineAndSuspension(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	suspended := func(yes bool) {
		controllertest.Edit(c.Cluster, c.Client.BatchV1().CronJobs("default"), "late", func(cj *batchv1.CronJob) {
			cj.Spec.Suspend = &yes
		})
	}
	c.everyMinute("late", func(cj *batchv1.CronJob) {
		runsAtOnce(cj)
		cj.Spec.Schedule = "0 * * * *"
		cj.Spec.StartingDeadlineSeconds, cj.Spec.Suspend = new(int64(120)), new(true)
	})
	hour := c.Now().Truncate(time.Hour).Add(2 * time.Hour)
	c.SetTime(hour.Add(10 * time.Minute))
	suspended(false)
	// The scheduled time was too long ago. Another CronJob, created later, shows that this one was reconciled.
	c.everyMinute("other", runsAtOnce)
	c.nextMinute()
	c.Reaches("the other runs", func() bool { return len(c.jobNames()) > 0 })
	for _, name := range c.jobNames() {
		require.True(t, strings.HasPrefix(name, "other-"), name)
	}
	c.SetTime(hour.Add(time.Hour + time.Minute))
	c.Reaches("late, but in time", func() bool {
		return slices.Contains(c.jobNames(), nameAt("late", hour.Add(time.Hour)))
	})
}

func TestCronJob_FollowsItsTimeZone(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	kathmandu, err := time.LoadLocation("Asia/Kathmandu") // 5 h 45 min before Greenwich
	require.NoError(t, err)
	c.everyMinute("tea", func(cj *batchv1.CronJob) {
		runsAtOnce(cj)
		cj.Spec.Schedule, cj.Spec.TimeZone = "0 16 * * *", new("Asia/Kathmandu")
	})
	day := c.Now().In(kathmandu).AddDate(0, 0, 1)
	due := time.Date(day.Year(), day.Month(), day.Day(), 16, 0, 0, 0, kathmandu)
	c.SetTime(due.Add(time.Second))
	c.Reaches("it runs", func() bool { return len(c.jobNames()) == 1 })
	require.Equal(t, nameAt("tea", due), c.jobNames()[0])
	require.Equal(t, due.Format(time.RFC3339),
		c.Job(nameAt("tea", due)).Annotations[batchv1.CronJobScheduledTimestampAnnotation])
}

func TestCronJob_RunsTheLastOfManyMissedTimes(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	c.everyMinute("hello", runsAtOnce)
	first := c.nextMinute()
	c.Reaches("the first run", func() bool { return len(c.jobNames()) == 1 })
	c.StopControllers()
	due := c.Now().Truncate(time.Minute).Add(10 * time.Hour)
	c.SetTime(due.Add(time.Second))
	c.Restart()
	c.Reaches("one more", func() bool {
		return slices.Equal(c.jobNames(), []string{nameAt("hello", first), nameAt("hello", due)})
	})
	c.AwaitEvent("TooManyMissedTimes", "too many missed start times")
}

func TestCronJob_ForbidsConcurrentRunsOnARandomWalk(t *testing.T) {
	t.Parallel()
	c := newCron(t)
	random := controllertest.NewRandom(t)
	cj := c.everyMinute("tick", func(cj *batchv1.CronJob) {
		cj.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent
		cj.Spec.SuccessfulJobsHistoryLimit = new(int32(100))
		cj.Spec.JobTemplate.Spec.Template.Annotations = map[string]string{"sim.coxswain.dev/exit-code": "0",
			"sim.coxswain.dev/run-for": "90s"}
	})
	stream, err := c.Client.BatchV1().Jobs("default").Watch(c.Context(),
		metav1.ListOptions{ResourceVersion: cj.ResourceVersion})
	require.NoError(t, err)
	var mu sync.Mutex
	running, created, highest := map[string]bool{}, map[string]bool{}, 0
	controllertest.Follow(c.Cluster, stream, func(kind watch.EventType, j *batchv1.Job) {
		mu.Lock()
		defer mu.Unlock()
		created[j.Name] = true
		ended := slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
			return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
		})
		delete(running, j.Name)
		if kind != watch.Deleted && !ended {
			running[j.Name] = true
		}
		highest = max(highest, len(running))
	})
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(created)
	}
	c.nextMinute()
	for i := range 6 {
		before := count()
		c.Passing(time.Duration(100+random.IntN(900))*time.Millisecond, fmt.Sprintf("run %d", i), func() bool {
			return count() > before
		})
		if random.IntN(2) == 0 {
			c.Restart()
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 1, highest)
}
