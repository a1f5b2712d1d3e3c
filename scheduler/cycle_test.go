package scheduler

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// cycle runs a scheduling cycle, which assumes the pod on the node that it chooses.
func (s *scheduler) cycle(t *testing.T, pod *corev1.Pod) (*placement, error) {
	return s.schedulingCycle(t.Context(), s.profiles["default-scheduler"], framework.NewPodInfo(pod))
}

// boundTo returns a pod as the informer shows it once it is bound.
func boundTo(pod *corev1.Pod, node string) *framework.PodInfo {
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	return framework.NewPodInfo(bound)
}

func TestCycle_DoesNotScheduleABoundPod(t *testing.T) {
	t.Parallel()
	s := testScheduler(t, nil)
	s.cache.setNode(testNode("a", "4", "110"))
	s.cache.setNode(testNode("b", "4", "110"))
	pod := testPod("p", "1")
	s.cache.setPod(boundTo(pod, "a")) // bound by another scheduler, while the pod waited in this one's queue
	_, err := s.cycle(t, pod)
	require.ErrorIs(t, err, errAlreadyBound)
	require.Equal(t, "a", s.cache.pods[pod.UID].node)
	require.Len(t, s.cache.nodes["b"].info.Pods, 0)
}

func TestCycle_CountsAssumedPods(t *testing.T) {
	t.Parallel()
	s := testScheduler(t, nil)
	s.cache.setNode(testNode("only", "1", "110"))
	first, second := testPod("first", "1"), testPod("second", "1")
	where, err := s.cycle(t, first)
	require.NoError(t, err)
	require.Equal(t, "only", where.node)
	_, err = s.cycle(t, second)
	require.ErrorContains(t, err, "Insufficient cpu")
	s.giveBack(framework.NewPodInfo(first)) // its binding has failed
	_, err = s.cycle(t, second)
	require.NoError(t, err)
}

func TestBindingCycle_ReleasesTheRoomWhenItFails(t *testing.T) {
	t.Parallel()
	s := testScheduler(t, nil)
	s.cache.setNode(testNode("only", "1", "110"))
	s.pods = corelisters.NewPodLister(toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, nil))
	client := s.client.(*fake.Clientset)
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("the API server is on fire")
	})
	pod := testPod("p", "1")
	s.queue.set(framework.NewPodInfo(pod), nil)
	where, err := s.cycle(t, pod)
	require.NoError(t, err)
	s.bindingCycle(t.Context(), s.profiles["default-scheduler"], where, s.queue.pop())
	require.Len(t, client.Actions(), 1)
	require.Equal(t, 1, s.queue.counts()[backoff], "it is tried again")
	_, err = s.cycle(t, testPod("other", "1"))
	require.NoError(t, err)
}

// A binding that seems to have failed, because its answer was lost, may have been carried out.
func TestGiveBack_KeepsAPodThatTheInformerShowsBound(t *testing.T) {
	t.Parallel()
	s := testScheduler(t, nil)
	s.cache.setNode(testNode("only", "1", "110"))
	pod := testPod("p", "1")
	_, err := s.cycle(t, pod)
	require.NoError(t, err)
	s.cache.setPod(boundTo(pod, "only"))
	s.giveBack(framework.NewPodInfo(pod))
	_, err = s.cycle(t, testPod("other", "1"))
	require.ErrorContains(t, err, "Insufficient cpu")
}

// When an attempt fails, another pod may have the name already, or another scheduler may have bound the pod.
func TestFail_WritesOnlyToTheAttemptedPod(t *testing.T) {
	t.Parallel()
	pod := testPod("p", "1")
	another := pod.DeepCopy()
	another.UID = "another"
	for name, tt := range map[string]struct {
		now    *corev1.Pod
		writes int
	}{
		"the same": {pod, 1}, "another": {another, 0}, "bound": {boundTo(pod, "a").Pod, 0}, "gone": {nil, 0},
	} {
		s := testScheduler(t, nil)
		store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})
		if tt.now != nil {
			require.NoError(t, store.Add(tt.now))
		}
		s.pods = corelisters.NewPodLister(store)
		info := framework.NewPodInfo(pod)
		s.queue.set(info, nil)
		s.nominator.set(info, "a")
		refusal := &unplaceable{diagnosis: &framework.Diagnosis{Total: 1, PreFilterMessage: "no",
			Plugins: map[string]struct{}{"Rooms": {}}}}
		s.fail(t.Context(), s.profiles["default-scheduler"], s.queue.pop(), refusal)
		require.Len(t, s.client.(*fake.Clientset).Actions(), tt.writes, name)
		require.Equal(t, tt.writes > 0, s.nominator.of(pod.UID) == "a", name)
	}
}
