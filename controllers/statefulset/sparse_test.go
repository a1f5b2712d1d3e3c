package statefulset

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/controller"
)

// enormous is a look at a set that asks for as many pods as it can, from the highest first ordinal, and has those of
// some places; they are all available.
func enormous(revision string, places ...int) *look {
	all := intstr.FromString("100%")
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
	set.Spec.Replicas, set.Spec.Ordinals = new(int32(math.MaxInt32)), &appsv1.StatefulSetOrdinals{Start: math.MaxInt32}
	set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: &all}
	update := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "new"}}
	update.Data.Raw = []byte(`{"spec":{"template":{"metadata":{"labels":{"app":"web"}}}}}`)
	client := fake.NewSimpleClientset()
	env := &controller.Env{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler), Workers: func(string) int { return 1 }}
	l := &look{
		statefulSets: &statefulSets{client: client, failures: controller.NewFailures(clock.RealClock{}, time.Minute), recorder: record.NewFakeRecorder(10_000),
			expected: controller.NewExpectations(clock.RealClock{}), Controller: controller.New(env, "statefulset", nil)},
		key: "default/web", set: set, current: update, update: update,
	}
	for _, i := range places {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "web-" + strconv.Itoa(math.MaxInt32+i), Namespace: "default", Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: revision},
		}}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		l.pods = append(l.pods, pod)
	}
	return l
}

func deleted(l *look) (names []string) {
	for _, a := range l.client.(*fake.Clientset).Actions() {
		if d, ok := a.(k8stesting.DeleteAction); ok {
			names = append(names, d.GetName())
		}
	}
	return names
}

// No test of this package runs beside it: what is allocated is its own.
func TestLook_TakesMemoryForThePodsThatThereAre(t *testing.T) {
	l := enormous("new", 1000, 0, -7)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	l.sort()
	require.Equal(t, []int{0, 1000}, l.places())
	require.Len(t, l.condemned, 1)
	require.NoError(t, l.roll(context.Background()))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
	require.Empty(t, deleted(l))
}

func TestRoll_CountsThePodsThatAreMissing(t *testing.T) {
	for name, c := range map[string]struct {
		unavailable, partition int32
		places                 []int
		want                   []int // of the deleted
	}{
		"all are away but two":       {math.MaxInt32, 0, []int{0, 1000}, []int{1000, 0}},
		"one more than may be":       {math.MaxInt32 - 1, 0, []int{0, 1000}, []int{1000}},
		"none may be":                {1, 0, []int{0, 1000}, nil},
		"the highest is there":       {1, 0, []int{math.MaxInt32 - 2, math.MaxInt32 - 1}, []int{math.MaxInt32 - 1}},
		"only above the partition":   {math.MaxInt32, 1000, []int{0, 1000}, []int{1000}},
		"the partition is above all": {math.MaxInt32, math.MaxInt32, []int{0, 1000}, nil},
	} {
		l := enormous("old", c.places...)
		most := intstr.FromInt32(c.unavailable)
		l.set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: &most, Partition: &c.partition}
		l.sort()
		require.NoError(t, l.roll(t.Context()))
		var want []string
		for _, i := range c.want {
			want = append(want, "web-"+strconv.Itoa(math.MaxInt32+i))
		}
		require.Equal(t, want, deleted(l), name)
	}
}

func TestAct_DelaysWhatReplacesAPodThatFailed(t *testing.T) {
	l := enormous("new")
	l.set.Spec.Replicas, l.set.Spec.Ordinals = new(int32(2)), nil
	l.sort()
	name := podName(l.set, 1)
	l.failures.Failed(l.key, name)
	require.Zero(t, l.failures.Replace(l.key, name), "the first replacement is made at once")
	l.failures.Failed(l.key, name)
	require.NoError(t, l.act(t.Context()))
	require.Len(t, l.replicas, 1, "the second must wait")
	require.NotNil(t, l.replicas[0])
}

func TestAct_MakesABurstOfPodsAtATime(t *testing.T) {
	l := enormous("new", 3, 5_000_000)
	for _, pod := range l.pods {
		setIdentity(pod, pod.Name, map[string]int{l.pods[0].Name: math.MaxInt32 + 3, l.pods[1].Name: math.MaxInt32 + 5_000_000}[pod.Name])
	}
	l.sort()
	require.NoError(t, l.act(t.Context()))
	require.Len(t, l.replicas, 2+burst)
	require.NotNil(t, l.replicas[burst], "the third was there")
	require.Nil(t, l.replicas[burst+1])
	require.Empty(t, deleted(l))
}
