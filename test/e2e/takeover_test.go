//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// TestTakeover_FinishesRolloutsOfEachKind kills the leading controllers with kill -9, first while all rollouts
// are half-way (pods are not scheduled, so no rollout can end), then in full motion. Each time a standby takes over. In
// the end every kind matches its spec, and the created and deleted pods are the same as in an undisturbed rollout.
func TestTakeover_FinishesRolloutsOfEachKind(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c := &takeover{cluster: serving(t, start(t, "apiserver", "--data-dir", dir, "--secure-port", "0"), dir)}
	scheduler := c.component("scheduler")
	c.component("node", "--nodes", fmt.Sprint(nodesOfTakeover))
	c.nodesReady(nodesOfTakeover)
	c.standby()
	c.standby()

	c.makeAll()
	c.until("everything runs", func() []string { return c.incomplete("one") })
	from := c.startJob().ResourceVersion
	c.until("the Job is under way", func() []string { return unless(c.job().Status.Succeeded > 0, "Job") })
	scheduler.signal(syscall.SIGSTOP)
	for _, plural := range []string{"deployments", "statefulsets", "daemonsets"} {
		c.patch(plural, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"two"}]}}}}`)
	}
	c.until("the rollouts have begun", c.notBegun)
	c.patch("replicasets", fmt.Sprintf(`{"spec":{"replicas":%d}}`, manyReplicas))
	c.patch("cronjobs", `{"spec":{"suspend":false}}`)
	c.until("the ReplicaSet grows", func() []string { return unless(c.replicas() > replicas+20, "ReplicaSet") })
	c.killLeader()
	// From now on no controller acts, until the standby does.
	require.Empty(t, c.notBegun())
	require.Len(t, c.incomplete("two"), 6, "none can be over")

	c.standby()
	scheduler.signal(syscall.SIGCONT)
	updated := c.deployment().Status.UpdatedReplicas
	c.until("the Deployment continues", func() []string {
		return unless(c.deployment().Status.UpdatedReplicas > updated, "Deployment")
	})
	c.killLeader()
	c.until("every rollout has ended", func() []string { return c.incomplete("two") })

	made, ended := c.history(from)
	require.Equal(t, map[string]int{
		"deployments": replicas, "statefulsets": replicas, "daemonsets": nodesOfTakeover,
		"replicasets": manyReplicas - replicas, "jobs": completions, "cronjobs": 1,
	}, made, "pods made")
	require.Equal(t, map[string]int{"deployments": replicas, "statefulsets": replicas, "daemonsets": nodesOfTakeover},
		ended, "pods ended")
}

// The sizes of the rollouts.
const (
	nodesOfTakeover = 3
	replicas        = 6
	manyReplicas    = 300
	completions     = 10
)

// takeover is a control plane with several processes of controllers. It has one object of each kind, all named web; the
// label of its pods is the kind in plural.
type takeover struct {
	*cluster
	controllers []*process
}

// standby starts one more process of controllers. The lease is short, but longer than the pauses of a leader on a slow
// machine.
func (c *takeover) standby() {
	c.controllers = append(c.controllers, c.component("controllers", "--log-level=info",
		"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=200ms"))
}

// killLeader kills the process that holds the lease.
func (c *takeover) killLeader() {
	c.t.Helper()
	var leader *process
	c.until("there is a leader", func() []string {
		lease, err := c.client.CoordinationV1().Leases("kube-system").Get(c.t.Context(), "kube-controller-manager",
			metav1.GetOptions{})
		require.NoError(c.t, err)
		for _, p := range c.controllers {
			if holder := *lease.Spec.HolderIdentity; holder != "" && p.running() &&
				strings.Contains(p.out.String(), "identity="+holder+" ") {
				leader = p
			}
		}
		return unless(leader != nil, "a process that says so")
	})
	leader.kill()
	c.t.Logf("killed process %d; pods of the ReplicaSet: %d, succeeded runs of the Job: %d, not complete: %v",
		leader.cmd.Process.Pid, c.replicas(), c.job().Status.Succeeded, c.incomplete("two"))
}

// until waits until no item is missing. A leader that could not renew its Lease in time has exited by itself, so it
// always keeps a standby running.
func (c *takeover) until(what string, missing func() []string) {
	c.t.Helper()
	var left []string
	defer func() {
		if len(left) > 0 {
			c.t.Logf("missing: %v", left)
		}
	}()
	eventually(c.t, 2*time.Minute, what, func() bool {
		if !slices.ContainsFunc(c.controllers, (*process).running) {
			c.standby()
		}
		left = missing()
		return len(left) == 0
	})
}

func unless(holds bool, what string) []string {
	if holds {
		return nil
	}
	return []string{what}
}

func podsOf(plural, image string, annotations map[string]string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	labels := map[string]string{"kind": plural}
	return &metav1.LabelSelector{MatchLabels: labels}, corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{Name: "c", Image: image}},
		},
	}
}

// makeAll creates one object of each kind except the Job. The CronJob's only time was at the last New Year.
func (c *takeover) makeAll() {
	t, ctx, apps := c.t, c.t.Context(), c.client.AppsV1()
	meta := metav1.ObjectMeta{Name: "web"}
	slowly := map[string]string{"sim.coxswain.dev/ready-after": "300ms"}

	selector, template := podsOf("deployments", "one", slowly)
	_, err := apps.Deployments("default").Create(ctx, &appsv1.Deployment{ObjectMeta: meta,
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(replicas)), Selector: selector, Template: template}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	selector, template = podsOf("statefulsets", "one", slowly)
	_, err = apps.StatefulSets("default").Create(ctx, &appsv1.StatefulSet{ObjectMeta: meta,
		Spec: appsv1.StatefulSetSpec{Replicas: new(int32(replicas)), Selector: selector, Template: template}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	selector, template = podsOf("daemonsets", "one", slowly)
	_, err = apps.DaemonSets("default").Create(ctx, &appsv1.DaemonSet{ObjectMeta: meta,
		Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}, metav1.CreateOptions{})
	require.NoError(t, err)
	selector, template = podsOf("replicasets", "one", nil)
	_, err = apps.ReplicaSets("default").Create(ctx, &appsv1.ReplicaSet{ObjectMeta: meta,
		Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(replicas)), Selector: selector, Template: template}},
		metav1.CreateOptions{})
	require.NoError(t, err)

	_, template = podsOf("cronjobs", "one", map[string]string{"sim.coxswain.dev/exit-code": "0"})
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	cron, err := c.client.BatchV1().CronJobs("default").Create(ctx,
		&batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{
			Schedule: "0 0 1 1 *", Suspend: new(true),
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}},
		}}, metav1.CreateOptions{})
	require.NoError(t, err)
	cron.Status.LastScheduleTime = new(metav1.NewTime(time.Date(time.Now().UTC().Year()-1, 6, 1, 0, 0, 0, 0, time.UTC)))
	_, err = c.client.BatchV1().CronJobs("default").UpdateStatus(ctx, cron, metav1.UpdateOptions{})
	require.NoError(t, err)
}

func (c *takeover) startJob() *batchv1.Job {
	_, template := podsOf("jobs", "one", map[string]string{"sim.coxswain.dev/run-for": "1s",
		"sim.coxswain.dev/exit-code": "0"})
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	j, err := c.client.BatchV1().Jobs("default").Create(c.t.Context(),
		&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: batchv1.JobSpec{Completions: new(int32(completions)), Parallelism: new(int32(2)),
				Template: template}},
		metav1.CreateOptions{})
	require.NoError(c.t, err)
	return j
}

func (c *takeover) patch(plural, patch string) {
	c.t.Helper()
	group := "apps"
	if plural == "cronjobs" {
		group = "batch"
	}
	err := c.client.AppsV1().RESTClient().Patch(types.StrategicMergePatchType).
		AbsPath("/apis/" + group + "/v1/namespaces/default/" + plural + "/web").Body([]byte(patch)).Do(
		c.t.Context()).Error()
	require.NoError(c.t, err)
}

func (c *takeover) deployment() *appsv1.Deployment {
	d, err := c.client.AppsV1().Deployments("default").Get(c.t.Context(), "web", metav1.GetOptions{})
	require.NoError(c.t, err)
	return d
}

func (c *takeover) job() *batchv1.Job {
	j, err := c.client.BatchV1().Jobs("default").Get(c.t.Context(), "web", metav1.GetOptions{})
	require.NoError(c.t, err)
	return j
}

// replicas counts the ReplicaSet's pods.
func (c *takeover) replicas() int {
	list, err := c.client.CoreV1().Pods("default").List(c.t.Context(),
		metav1.ListOptions{LabelSelector: "kind=replicasets"})
	require.NoError(c.t, err)
	return len(list.Items)
}

// images counts the pods by kind and image, except pods of Jobs.
func (c *takeover) images() map[string]int {
	list, err := c.client.CoreV1().Pods("default").List(c.t.Context(), metav1.ListOptions{})
	require.NoError(c.t, err)
	n := map[string]int{}
	for _, p := range list.Items {
		n[p.Labels["kind"]+" "+p.Spec.Containers[0].Image]++
	}
	return n
}

// notBegun returns the kinds without a pod of the second image.
func (c *takeover) notBegun() (missing []string) {
	have := c.images()
	for _, plural := range []string{"deployments", "statefulsets", "daemonsets"} {
		missing = append(missing, unless(have[plural+" two"] > 0, plural)...)
	}
	return missing
}

// incomplete returns the kinds whose status does not match their spec yet. image applies to the kinds with a rollout;
// the second image goes with a Job, a CronJob that has run and a larger ReplicaSet.
func (c *takeover) incomplete(image string) (missing []string) {
	ctx, apps, batch := c.t.Context(), c.client.AppsV1(), c.client.BatchV1()
	have, second := c.images(), image == "two"

	d := c.deployment()
	missing = append(missing, unless(d.Status.ObservedGeneration == d.Generation &&
		d.Status.UpdatedReplicas == replicas &&
		d.Status.AvailableReplicas == replicas && d.Status.Replicas == replicas &&
		have["deployments "+image] == replicas, "Deployment")...)
	sts, err := apps.StatefulSets("default").Get(ctx, "web", metav1.GetOptions{})
	require.NoError(c.t, err)
	missing = append(missing, unless(sts.Status.ObservedGeneration == sts.Generation &&
		sts.Status.UpdatedReplicas == replicas &&
		sts.Status.ReadyReplicas == replicas && have["statefulsets "+image] == replicas, "StatefulSet")...)
	ds, err := apps.DaemonSets("default").Get(ctx, "web", metav1.GetOptions{})
	require.NoError(c.t, err)
	missing = append(missing, unless(ds.Status.ObservedGeneration == ds.Generation &&
		ds.Status.UpdatedNumberScheduled == nodesOfTakeover &&
		ds.Status.NumberAvailable == nodesOfTakeover && have["daemonsets "+image] == nodesOfTakeover, "DaemonSet")...)
	rs, err := apps.ReplicaSets("default").Get(ctx, "web", metav1.GetOptions{})
	require.NoError(c.t, err)
	size := int32(replicas)
	if second {
		size = manyReplicas
	}
	missing = append(missing, unless(rs.Status.ReadyReplicas == size && rs.Status.Replicas == size, "ReplicaSet")...)
	if !second {
		return missing
	}
	missing = append(missing, unless(c.job().Status.Succeeded == completions && c.job().Status.CompletionTime != nil,
		"Job")...)
	cron, err := batch.CronJobs("default").Get(ctx, "web", metav1.GetOptions{})
	require.NoError(c.t, err)
	newYear := time.Date(time.Now().UTC().Year(), 1, 1, 0, 0, 0, 0, time.UTC)
	return append(missing, unless(cron.Status.LastScheduleTime.Time.Equal(newYear) &&
		cron.Status.LastSuccessfulTime != nil &&
		len(cron.Status.Active) == 0, "CronJob")...)
}

// history counts, by kind, the created and deleted pods since a version. It creates a marker pod: once the watch shows
// it, all earlier events have been seen.
func (c *takeover) history(from string) (made, ended map[string]int) {
	ctx, pods := c.t.Context(), c.client.CoreV1().Pods("default")
	_, template := podsOf("none", "one", nil)
	_, err := pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "last"}, Spec: template.Spec},
		metav1.CreateOptions{})
	require.NoError(c.t, err)
	w, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: from})
	require.NoError(c.t, err)
	defer w.Stop()
	made, ended = map[string]int{}, map[string]int{}
	for e := range w.ResultChan() {
		pod, ok := e.Object.(*corev1.Pod)
		require.True(c.t, ok, "%v", e.Object)
		switch {
		case pod.Name == "last":
			return made, ended
		case e.Type == watch.Added:
			made[pod.Labels["kind"]]++
		case e.Type == watch.Deleted:
			ended[pod.Labels["kind"]]++
		}
	}
	c.t.Fatal("the watch of pods ended")
	return nil, nil
}
