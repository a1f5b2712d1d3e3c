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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// enormous returns a sync of a set with the largest possible number of replicas and first ordinal. Only the pods with
// these indices exist; they are all available.
func enormous(t testing.TB, revision string, indices ...int) *sync {
	all := intstr.FromString("100%")
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
	set.Spec.Replicas, set.Spec.Ordinals = new(int32(math.MaxInt32)), &appsv1.StatefulSetOrdinals{Start: math.MaxInt32}
	set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: &all}
	update := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "new"}}
	update.Data.Raw = []byte(`{"spec":{"template":{"metadata":{"labels":{"app":"web"}}}}}`)
	client := fake.NewSimpleClientset()
	env := &controller.Env{Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler), Workers: func(string) int {
		return 1
	}}
	s := &sync{
		statefulSets: &statefulSets{
			Controller:        controller.New(env, "statefulset", nil),
			OwnerExpectations: controller.NewOwnerExpectations(clock.RealClock{}, time.Minute),
			client:            func() kubernetes.Interface { return client }, recorder: record.NewFakeRecorder(10_000),
		},
		key: "default/web", set: set, current: update, update: update,
	}
	t.Cleanup(func() { s.Run(canceled()) })
	for _, i := range indices {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "web-" + strconv.Itoa(math.MaxInt32+i), Namespace: "default",
			Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: revision},
		}}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		s.pods = append(s.pods, pod)
	}
	return s
}

// canceled returns a canceled context, with which a controller only closes its queue.
func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// deleted returns the names of the pods that the sync has deleted.
func deleted(s *sync) (names []string) {
	for _, a := range s.client().(*fake.Clientset).Actions() {
		if d, ok := a.(k8stesting.DeleteAction); ok {
			names = append(names, d.GetName())
		}
	}
	return names
}

// This test is not parallel, so that it measures only its own allocations.
func TestSync_UsesMemoryForExistingPodsOnly(t *testing.T) {
	s := enormous(t, "new", 1000, 0, -7)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.assignOrdinals()
	require.Equal(t, []int{0, 1000}, s.indices())
	require.Len(t, s.condemned, 1)
	require.NoError(t, s.roll(context.Background()))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
	require.Empty(t, deleted(s))
}

func TestRoll_CountsMissingPodsAsUnavailable(t *testing.T) {
	for name, c := range map[string]struct {
		unavailable, partition int32
		indices                []int // of the existing pods
		want                   []int // the indices of the deleted pods
	}{
		"all but two are missing":            {math.MaxInt32, 0, []int{0, 1000}, []int{1000, 0}},
		"all but one may be missing":         {math.MaxInt32 - 1, 0, []int{0, 1000}, []int{1000}},
		"all but two are missing, limit one": {1, 0, []int{0, 1000}, nil},
		"the highest two exist":              {1, 0, []int{math.MaxInt32 - 2, math.MaxInt32 - 1}, []int{math.MaxInt32 - 1}},
		"only above the partition":           {math.MaxInt32, 1000, []int{0, 1000}, []int{1000}},
		"the partition is above all":         {math.MaxInt32, math.MaxInt32, []int{0, 1000}, nil},
	} {
		s := enormous(t, "old", c.indices...)
		limit := intstr.FromInt32(c.unavailable)
		s.set.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: &limit,
			Partition: &c.partition}
		s.assignOrdinals()
		require.NoError(t, s.roll(t.Context()))
		var want []string
		for _, i := range c.want {
			want = append(want, "web-"+strconv.Itoa(math.MaxInt32+i))
		}
		require.Equal(t, want, deleted(s), name)
	}
}

func TestAct_DelaysTheReplacementOfAFailedPod(t *testing.T) {
	s := enormous(t, "new")
	s.set.Spec.Replicas, s.set.Spec.Ordinals = new(int32(2)), nil
	s.assignOrdinals()
	name := podName(s.set, 1)
	s.Failures.Failed(s.key, name)
	require.Zero(t, s.Failures.Replace(s.key, name), "the first replacement has no delay")
	s.Failures.Failed(s.key, name)
	require.NoError(t, s.act(t.Context()))
	require.Len(t, s.replicas, 1, "the second is delayed")
	require.NotNil(t, s.replicas[0])
}

func TestAct_CreatesABurstOfPodsAtATime(t *testing.T) {
	s := enormous(t, "new", 3, 5_000_000)
	for _, pod := range s.pods {
		setIdentity(pod, pod.Name, map[string]int{s.pods[0].Name: math.MaxInt32 + 3,
			s.pods[1].Name: math.MaxInt32 + 5_000_000}[pod.Name])
	}
	s.assignOrdinals()
	require.NoError(t, s.act(t.Context()))
	require.Len(t, s.replicas, 2+burst)
	require.NotNil(t, s.replicas[burst], "the third was there")
	require.Nil(t, s.replicas[burst+1])
	require.Empty(t, deleted(s))
}
