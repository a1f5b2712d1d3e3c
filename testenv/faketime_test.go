package testenv_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/testenv"
)

var mayDay = time.Date(2031, 5, 1, 8, 0, 0, 0, time.UTC)

// startOnMayDay starts a control plane with a clock that the test moves, and waits until it is idle.
func startOnMayDay(t *testing.T, opts ...testenv.Option) (*testenv.Clock, *testenv.Environment, kubernetes.Interface) {
	t.Helper()
	clock := testenv.NewClock(mayDay)
	env := testenv.StartEnvironment(t, append(opts, testenv.WithFakeTime(clock))...)
	client, err := kubernetes.NewForConfig(quiet(env.Config))
	require.NoError(t, err)
	settle(t, env)
	return clock, env, client
}

func quiet(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{}
	return config
}

func settle(t *testing.T, env *testenv.Environment) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, env.Settle(ctx))
}

// pausing returns a pod template that behaves as its annotations specify.
func pausing(annotations map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}, Annotations: annotations},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways,
			Containers: []corev1.Container{{Name: "web", Image: "web:1"}}},
	}
}

func web(replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template: pausing(nil)}}
}

func hourly() *batchv1.CronJob {
	template := pausing(map[string]string{"sim.coxswain.dev/run-for": "5m"})
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	return &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "backup"}, Spec: batchv1.CronJobSpec{
		Schedule: "30 * * * *", SuccessfulJobsHistoryLimit: ptr.To[int32](100),
		JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}}}
}

// TestSettle_ReturnsWhenADeploymentIsUp checks only once, and uses the machine's clock.
func TestSettle_ReturnsWhenADeploymentIsUp(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t)
	client := kubernetes.NewForConfigOrDie(env.Config)
	for round := range int32(5) {
		d := web(1 + round)
		d.Name = fmt.Sprint("web-", round)
		d.Spec.Selector.MatchLabels["app"], d.Spec.Template.Labels["app"] = d.Name, d.Name
		_, err := client.AppsV1().Deployments("default").Create(t.Context(), d, metav1.CreateOptions{})
		require.NoError(t, err)
		settle(t, env)
		d, err = client.AppsV1().Deployments("default").Get(t.Context(), d.Name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, *d.Spec.Replicas, d.Status.ReadyReplicas)
	}
}

func TestFakeTime_FiresACronJobEachHourOfADay(t *testing.T) {
	t.Parallel()
	clock, _, client := startOnMayDay(t)
	_, err := client.BatchV1().CronJobs("default").Create(t.Context(), hourly(), metav1.CreateOptions{})
	require.NoError(t, err)
	clock.Step(24 * time.Hour)
	require.Equal(t, mayDay.Add(24*time.Hour), clock.Now())
	jobs, err := client.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, jobs.Items, 24)
	slices.SortFunc(jobs.Items, func(a, b batchv1.Job) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for i, job := range jobs.Items {
		expected := mayDay.Add(time.Duration(i)*time.Hour + 30*time.Minute)
		require.WithinDuration(t, expected, job.CreationTimestamp.Time, time.Second)
		require.WithinDuration(t, expected.Add(5*time.Minute), job.Status.CompletionTime.Time, 2*time.Second)
	}
	cron, err := client.BatchV1().CronJobs("default").Get(t.Context(), "backup", metav1.GetOptions{})
	require.NoError(t, err)
	require.Empty(t, cron.Status.Active)
}

func TestFakeTime_EndsTimesToLiveInTheirOrder(t *testing.T) {
	t.Parallel()
	clock, _, client := startOnMayDay(t, testenv.WithNodes(0))
	for name, ttl := range map[string]string{"short": "10m", "long": "12h"} {
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{"coxswain.dev/ttl": ttl}}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err := client.CoreV1().Events("default").Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "once"},
		InvolvedObject: corev1.ObjectReference{Namespace: "default"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	there := func(names ...string) {
		t.Helper()
		for _, name := range []string{"short", "long"} {
			_, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
			require.Equal(t, !slices.Contains(names, name), apierrors.IsNotFound(err), name)
		}
		_, err := client.CoreV1().Events("default").Get(t.Context(), "once", metav1.GetOptions{})
		require.Equal(t, !slices.Contains(names, "once"), apierrors.IsNotFound(err), "the Event")
	}
	clock.Step(9 * time.Minute)
	there("short", "long", "once")
	clock.Step(2 * time.Minute)
	there("long", "once")
	clock.Step(time.Hour)
	there("long")
	clock.Step(24 * time.Hour)
	there()
}

// TestFakeTime_EvictsFromASilentNode advances a day in one step. After it, the pods must run on the live Node.
func TestFakeTime_EvictsFromASilentNode(t *testing.T) {
	t.Parallel()
	clock, env, client := startOnMayDay(t, testenv.WithNodes(2))
	_, err := client.AppsV1().Deployments("default").Create(t.Context(), web(4), metav1.CreateOptions{})
	require.NoError(t, err)
	settle(t, env)
	_, err = client.CoreV1().Nodes().Patch(t.Context(), "node-1", types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"sim.coxswain.dev/stopped":"true"}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	clock.Step(24 * time.Hour)
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	ready := map[string]corev1.NodeCondition{}
	for _, node := range nodes.Items {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				ready[node.Name] = c
			}
		}
	}
	require.Equal(t, corev1.ConditionTrue, ready["node-0"].Status)
	require.Equal(t, corev1.ConditionUnknown, ready["node-1"].Status)
	require.WithinDuration(t, mayDay.Add(50*time.Second), ready["node-1"].LastTransitionTime.Time, 15*time.Second)
	pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	lively := 0
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil {
			lively++
			require.Equal(t, "node-0", pod.Spec.NodeName)
			continue
		}
		require.Equal(t, "node-1", pod.Spec.NodeName)
		require.WithinDuration(t, mayDay.Add(350*time.Second), pod.DeletionTimestamp.Time, time.Minute)
	}
	require.Equal(t, 4, lively)
}

// TestFakeTime_IsTheSameEachTime compares two runs of a control plane.
func TestFakeTime_IsTheSameEachTime(t *testing.T) {
	t.Parallel()
	life := func() (times []string) {
		clock, _, client := startOnMayDay(t)
		_, err := client.BatchV1().CronJobs("default").Create(t.Context(), hourly(), metav1.CreateOptions{})
		require.NoError(t, err)
		for range 4 {
			clock.Step(95 * time.Minute)
			pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			for _, pod := range pods.Items {
				end := ""
				if ended := pod.Status.ContainerStatuses[0].State.Terminated; ended != nil {
					end = ended.FinishedAt.UTC().Format(time.TimeOnly)
				}
				times = append(times, fmt.Sprintln(clock.Now().UTC().Format(time.TimeOnly), pod.Labels["job-name"],
					pod.Status.Phase, pod.CreationTimestamp.UTC().Format(time.TimeOnly), end))
			}
		}
		slices.Sort(times)
		return times
	}
	first := life()
	require.NotEmpty(t, first)
	for range 2 {
		require.Equal(t, first, life())
	}
}
