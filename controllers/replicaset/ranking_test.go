package replicaset

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// pod returns a pod that has been running and ready on its own node for ten hours. Each test case changes something.
func pod(name string, edit func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name),
			CreationTimestamp: metav1.NewTime(now.Add(-10 * time.Hour))},
		Spec: corev1.PodSpec{NodeName: "node-" + name},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now.Add(-10 * time.Hour))}}},
	}
	if edit != nil {
		edit(p)
	}
	return p
}

// TestChoose lists the pods in the order in which they must be deleted.
func TestChoose(t *testing.T) {
	restarts := func(n int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: n}} }
	}
	ordered := []*corev1.Pod{
		pod("unassigned", func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			p.Status.Phase = corev1.PodPending
			p.Status.Conditions = nil
		}),
		pod("pending", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending; p.Status.Conditions = nil }),
		pod("unknown", func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }),
		pod("not-ready", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }),
		pod("cheap", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "-5"} }),
		pod("crowded-1", func(p *corev1.Pod) { p.Spec.NodeName = "crowded" }),
		pod("crowded-2", func(p *corev1.Pod) { p.Spec.NodeName = "crowded" }),
		pod("newly-ready", func(p *corev1.Pod) {
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Second))
		}),
		pod("restless", restarts(5)),
		pod("restarted", restarts(1)),
		pod("young", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute)) }),
		pod("old", nil),
		pod("older-by-uid", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-11 * time.Hour)) }),
		pod("bad-cost", func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.PodDeletionCost: "+9"}
			p.UID = "zz"
		}),
		pod("precious", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "100"} }),
	}
	// Equal in all properties and in the magnitude of the age: the uid decides.
	ordered[13].CreationTimestamp = ordered[12].CreationTimestamp
	ordered[13].CreationTimestamp.Time = ordered[13].CreationTimestamp.Add(-time.Hour)
	shuffled := append([]*corev1.Pod{}, ordered...)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for n := range len(ordered) {
		got, want := map[string]bool{}, map[string]bool{}
		for i, p := range choose(shuffled, shuffled, n, now) {
			got[p.Name] = true
			want[ordered[i].Name] = true
		}
		if n != 6 { // either of the two on the crowded node may be first
			require.Equal(t, want, got, "%d of them", n)
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	pods := make([]*corev1.Pod, 1000)
	for i := range pods {
		pods[i] = pod(fmt.Sprint(i), func(p *corev1.Pod) { p.Spec.NodeName = fmt.Sprint("node-", i%10) })
	}
	for b.Loop() {
		choose(pods, pods, 500, now)
	}
}
