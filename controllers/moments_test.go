package controllers_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/controllers/cronjob"
	"github.com/coxswain-dev/coxswain/controllers/daemonset"
	"github.com/coxswain-dev/coxswain/controllers/deployment"
	"github.com/coxswain-dev/coxswain/controllers/disruption"
	"github.com/coxswain-dev/coxswain/controllers/job"
	"github.com/coxswain-dev/coxswain/controllers/leasegc"
	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
	"github.com/coxswain-dev/coxswain/controllers/podcertificatecleaner"
	"github.com/coxswain-dev/coxswain/controllers/replicaset"
	"github.com/coxswain-dev/coxswain/controllers/statefulset"
	"github.com/coxswain-dev/coxswain/controllers/tainteviction"
	"github.com/coxswain-dev/coxswain/controllers/ttlafterfinished"
)

// moment is a controller that acts an hour after the objects were created, without any event.
type moment struct {
	construct func(*controller.Env) (*controller.Controller, error)
	objects   func(now time.Time) []runtime.Object
	done      func(*fakeenv.Env) bool
}

func hasWritten(verb, resource string) func(*fakeenv.Env) bool {
	return func(e *fakeenv.Env) bool { return len(e.Writes(verb, resource)) > 0 }
}

func meta(name string, now time.Time) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-1"),
		CreationTimestamp: metav1.NewTime(now), Labels: map[string]string{"app": "web"}}
}

func selected() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

func podSpec() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}}}
}

// readyPod returns a pod of an owner that has been ready since now.
func readyPod(name string, now time.Time, owner metav1.Object, kind string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: meta(name, now)}
	version := appsv1.SchemeGroupVersion
	if kind == "Job" {
		version, pod.Finalizers = batchv1.SchemeGroupVersion, []string{batchv1.JobTrackingFinalizer}
	}
	if owner != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, version.WithKind(kind))}
	}
	pod.Spec.NodeName, pod.Status.Phase = "n", corev1.PodRunning
	for _, t := range []corev1.PodConditionType{corev1.PodReady, corev1.PodScheduled} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now)})
	}
	return pod
}

func readyNode(taints ...corev1.Taint) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n-1"}, Spec: corev1.NodeSpec{Taints: taints}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

const hour = int32(3600)

func moments() map[string]moment {
	cases := availabilityMoments()
	for name, m := range endMoments() {
		cases[name] = m
	}
	return cases
}

// availabilityMoments returns controllers with pods that become available, and one with a pod that does not.
func availabilityMoments() map[string]moment {
	return map[string]moment{
		"replicaset": {replicaset.New, func(now time.Time) []runtime.Object {
			rs := &appsv1.ReplicaSet{ObjectMeta: meta("web", now), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(1)),
				MinReadySeconds: hour, Selector: selected(), Template: podSpec()}}
			return []runtime.Object{rs, readyPod("web-0", now, rs, "ReplicaSet")}
		}, func(e *fakeenv.Env) bool {
			rs, err := e.Client().AppsV1().ReplicaSets("default").Get(e.Context(), "web", metav1.GetOptions{})
			require.NoError(e, err)
			return rs.Status.AvailableReplicas == 1
		}},
		"statefulset": {statefulset.New, func(now time.Time) []runtime.Object {
			s := &appsv1.StatefulSet{ObjectMeta: meta("web", now), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1)),
				MinReadySeconds: hour, Selector: selected(), Template: podSpec(),
				UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}}}
			return []runtime.Object{s, readyPod("web-0", now, s, "StatefulSet")}
		}, func(e *fakeenv.Env) bool {
			s, err := e.Client().AppsV1().StatefulSets("default").Get(e.Context(), "web", metav1.GetOptions{})
			require.NoError(e, err)
			return s.Status.AvailableReplicas == 1
		}},
		"daemonset": {daemonset.New, func(now time.Time) []runtime.Object {
			d := &appsv1.DaemonSet{ObjectMeta: meta("web", now), Spec: appsv1.DaemonSetSpec{MinReadySeconds: hour,
				Selector: selected(), Template: podSpec(),
				UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}}}
			return []runtime.Object{d, readyNode(), readyPod("web-0", now, d, "DaemonSet")}
		}, func(e *fakeenv.Env) bool {
			d, err := e.Client().AppsV1().DaemonSets("default").Get(e.Context(), "web", metav1.GetOptions{})
			require.NoError(e, err)
			return d.Status.NumberAvailable == 1
		}},
		"deployment": {deployment.New, func(now time.Time) []runtime.Object {
			return []runtime.Object{&appsv1.Deployment{ObjectMeta: meta("web", now), Spec: appsv1.DeploymentSpec{
				Replicas: new(int32(1)), ProgressDeadlineSeconds: new(hour - 1), Selector: selected(),
				Template: podSpec(),
				Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
					RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(1)),
						MaxUnavailable: new(intstr.FromInt32(0))}}}}}
		}, func(e *fakeenv.Env) bool {
			d, err := e.Client().AppsV1().Deployments("default").Get(e.Context(), "web", metav1.GetOptions{})
			require.NoError(e, err)
			for _, c := range d.Status.Conditions {
				if c.Reason == "ProgressDeadlineExceeded" {
					return true
				}
			}
			return false
		}},
	}
}

// endMoments returns controllers that act when the time of an object is over.
func endMoments() map[string]moment {
	return map[string]moment{
		"job": {job.New, func(now time.Time) []runtime.Object {
			j := &batchv1.Job{ObjectMeta: meta("work", now), Spec: batchv1.JobSpec{Parallelism: new(int32(1)),
				Completions: new(int32(1)), BackoffLimit: new(int32(6)), ActiveDeadlineSeconds: new(int64(hour)),
				Selector: selected(), Template: podSpec()}}
			return []runtime.Object{j, readyPod("work-0", now, j, "Job")}
		}, hasWritten("delete", "pods")},
		"cronjob": {cronjob.New, func(now time.Time) []runtime.Object { // at eight o'clock
			return []runtime.Object{&batchv1.CronJob{ObjectMeta: meta("hourly", now), Spec: batchv1.CronJobSpec{
				Schedule: "0 * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: podSpec()}}}}}
		}, hasWritten("create", "jobs")},
		"ttlafterfinished": {ttlafterfinished.New, func(now time.Time) []runtime.Object {
			j := &batchv1.Job{ObjectMeta: meta("work", now)}
			j.Spec.TTLSecondsAfterFinished = new(hour)
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now)}}
			return []runtime.Object{j}
		}, hasWritten("delete", "jobs")},
		"leasegc": {leasegc.New, func(now time.Time) []runtime.Object {
			l := &coordinationv1.Lease{ObjectMeta: meta("gone", now)}
			l.Namespace, l.Spec.RenewTime = "kube-node-lease", new(metav1.NewMicroTime(now))
			return []runtime.Object{l}
		}, hasWritten("delete", "leases")},
		"podcertificatecleaner": {podcertificatecleaner.New, func(now time.Time) []runtime.Object {
			return []runtime.Object{&certificatesv1.PodCertificateRequest{ObjectMeta: meta("r", now.Add(45*time.Minute))}}
		}, hasWritten("delete", "podcertificaterequests")},
		"tainteviction": {tainteviction.New, func(now time.Time) []runtime.Object {
			pod := readyPod("p", now, nil, "")
			pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists,
				TolerationSeconds: new(int64(hour))}}
			return []runtime.Object{pod, readyNode(corev1.Taint{Key: "example.com/out",
				Effect: corev1.TaintEffectNoExecute, TimeAdded: new(metav1.NewTime(now))})}
		}, hasWritten("delete", "pods")},
		"tainteviction, the taint has no time": {tainteviction.New, func(now time.Time) []runtime.Object {
			pod := readyPod("p", now, nil, "")
			pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists,
				TolerationSeconds: new(int64(hour))}}
			return []runtime.Object{pod, readyNode(corev1.Taint{Key: "example.com/out", Effect: corev1.TaintEffectNoExecute})}
		}, hasWritten("delete", "pods")},
		"disruption, a pod that was not deleted": {disruption.New, func(now time.Time) []runtime.Object {
			pod := readyPod("p", now, nil, "")
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget,
				Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(58 * time.Minute))})
			return []runtime.Object{pod}
		}, hasWritten("patch", "pods")},
		"disruption, an eviction that did not happen": {disruption.New, func(now time.Time) []runtime.Object {
			pdb := &policyv1.PodDisruptionBudget{ObjectMeta: meta("web", now), Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: selected(), MinAvailable: new(intstr.FromInt32(0))}}
			pdb.Status.DisruptedPods = map[string]metav1.Time{"p": metav1.NewTime(now.Add(58 * time.Minute))}
			return []runtime.Object{pdb, readyPod("p", now, nil, "")}
		}, func(e *fakeenv.Env) bool {
			pdb, err := e.Client().PolicyV1().PodDisruptionBudgets("default").Get(e.Context(), "web", metav1.GetOptions{})
			require.NoError(e, err)
			return len(pdb.Status.DisruptedPods) == 0
		}},
	}
}

// TestMoments_FollowTheWallClock sets the wall clock of each controller forwards and back.
func TestMoments_FollowTheWallClock(t *testing.T) {
	t.Parallel()
	for name, m := range moments() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, c := range []struct{ ahead, early, late time.Duration }{
				{0, time.Hour - time.Second, 2 * time.Second},
				{time.Hour, 0, 12 * time.Second},
				{-time.Hour, 2*time.Hour - time.Second, 2 * time.Second},
			} {
				synctest.Test(t, func(t *testing.T) { m.passes(t, c.ahead, c.early, c.late) })
			}
		})
	}
}

// passes sets the wall clock ahead once the controller has started, and expects its action after early and at most late
// more. In the bubble, Wait returns when the controller has seen all events of its own writes.
func (m *moment) passes(t *testing.T, ahead, early, late time.Duration) {
	e := fakeenv.New(t)
	for _, o := range m.objects(e.Clock.Now()) {
		require.NoError(t, e.Fake.Tracker().Add(o))
	}
	e.Start(m.construct)
	synctest.Wait()
	require.False(t, m.done(e), "ahead by %s", ahead)
	e.Clock.SetAhead(ahead)
	e.Pass(early)
	synctest.Wait()
	require.False(t, m.done(e), "ahead by %s", ahead)
	e.Pass(late)
	synctest.Wait()
	require.True(t, m.done(e), "ahead by %s", ahead)
}
