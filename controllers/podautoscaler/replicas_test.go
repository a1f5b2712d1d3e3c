package podautoscaler

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// pod returns a pod of the target. Unless edited, it requests 1000m and has been ready for an hour.
func pod(i int, edit func(*corev1.Pod)) *corev1.Pod {
	started := metav1.NewTime(now.Add(-time.Hour))
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p%d", i)}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
	}}}
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &started, Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: started},
	}}
	if edit != nil {
		edit(p)
	}
	return p
}

func pending(p *corev1.Pod)     { p.Status.Phase = corev1.PodPending }
func failed(p *corev1.Pod)      { p.Status.Phase = corev1.PodFailed }
func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }

// neverReady makes a pod start two minutes ago and not become ready: its condition is as old.
func neverReady(p *corev1.Pod) {
	start := metav1.NewTime(now.Add(-2 * time.Minute))
	p.Status.StartTime = &start
	p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, start
}

// justReady makes a pod become ready ten seconds ago, after the window of its metric began.
func justReady(p *corev1.Pod) {
	p.Status.StartTime = &metav1.Time{Time: now.Add(-2 * time.Minute)}
	p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-10 * time.Second))
}

// unready makes a pod that was ready until a minute ago unready: its usage counts.
func unready(p *corev1.Pod) {
	p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse,
		metav1.NewTime(now.Add(-time.Minute))
}

const none = -1 // no metric

func newSession(current int32, pods []*corev1.Pod) *session {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, p := range pods {
		if err := indexer.Add(p); err != nil {
			panic(err)
		}
	}
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "h"}}
	hpa.Spec.MaxReplicas = 100
	return &session{
		autoscaler: &autoscaler{settings: controller.Settings{}.WithDefaults().Autoscaler,
			pods: corelisters.NewPodLister(indexer)},
		hpa: hpa, memory: &past{}, now: now, selector: labels.Everything(),
		target: &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: current},
			Status: autoscalingv1.ScaleStatus{Replicas: current}},
	}
}

// TestByUtilization checks the rules of
// https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details
func TestByUtilization(t *testing.T) {
	for name, c := range map[string]struct {
		target int32
		usage  []int64 // thousandths, by pod
		edits  map[int]func(*corev1.Pod)
		want   int32
		shown  int32 // percent
	}{
		"on target":                            {target: 50, usage: []int64{500, 500}, want: 2, shown: 50},
		"within the tolerance":                 {target: 50, usage: []int64{550, 550}, want: 2, shown: 55},
		"twice as much":                        {target: 50, usage: []int64{1000, 1000, 1000}, want: 6, shown: 100},
		"a bit more":                           {target: 50, usage: []int64{600, 600, 600}, want: 4, shown: 60},
		"half as much":                         {target: 50, usage: []int64{250, 250, 250, 250}, want: 2, shown: 25},
		"up, one has no metric":                {target: 50, usage: []int64{1000, 1000, none}, want: 4, shown: 100},
		"a missing metric prevents scaling up": {target: 50, usage: []int64{600, none}, want: 2, shown: 60},
		"down, one has no metric":              {target: 50, usage: []int64{100, 100, 100, none}, want: 3, shown: 10},
		"a missing metric counts as 100 %":     {target: 50, usage: []int64{100, 100, none}, want: 3, shown: 10},
		"up, one is pending": {target: 50, usage: []int64{1000, 1000, none},
			edits: map[int]func(*corev1.Pod){2: pending}, want: 4, shown: 100},
		"pending pods limit scaling up": {target: 50, usage: []int64{700, none, none},
			edits: map[int]func(*corev1.Pod){1: pending, 2: pending}, want: 3, shown: 70},
		"down, one is pending": {target: 50, usage: []int64{100, 100, none},
			edits: map[int]func(*corev1.Pod){2: pending}, want: 1, shown: 10},
		"failed and terminating pods do not count": {target: 50, usage: []int64{500, 5000, 5000},
			edits: map[int]func(*corev1.Pod){1: failed, 2: terminating}, want: 3, shown: 50},
		"the CPU of a pod that starts does not count": {target: 50, usage: []int64{500, 9000},
			edits: map[int]func(*corev1.Pod){1: neverReady}, want: 2, shown: 50},
		"a window that began before the pod was ready": {target: 50, usage: []int64{500, 9000},
			edits: map[int]func(*corev1.Pod){1: justReady}, want: 2, shown: 50},
		"a pod that became unready counts": {target: 50, usage: []int64{1000, 1000},
			edits: map[int]func(*corev1.Pod){1: unready}, want: 4, shown: 100},
	} {
		t.Run(name, func(t *testing.T) {
			var pods []*corev1.Pod
			metrics := podMetrics{}
			for i, u := range c.usage {
				p := pod(i, c.edits[i])
				pods = append(pods, p)
				if u != none {
					metrics[p.Name] = podMetric{u, now, time.Minute}
				}
			}
			out, err := newSession(int32(len(pods)), pods).byUtilization(pods, metrics, corev1.ResourceCPU, "",
				c.target)
			require.NoError(t, err)
			require.Equal(t, c.want, out.replicas)
			require.Equal(t, c.shown, out.utilization)
		})
	}
}

func TestByUtilization_ReportsAMissingRequest(t *testing.T) {
	bare := pod(0, func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = nil })
	_, err := newSession(1, nil).byUtilization([]*corev1.Pod{bare}, podMetrics{"p0": {value: 1}}, corev1.ResourceCPU,
		"", 50)
	require.EqualError(t, err, "missing request for cpu in container c of Pod p0")
	waits := pod(0, pending)
	_, err = newSession(1, nil).byUtilization([]*corev1.Pod{waits}, podMetrics{}, corev1.ResourceCPU, "", 50)
	require.ErrorIs(t, err, errNoPodMetrics)
}

func TestByAverage(t *testing.T) {
	pods := []*corev1.Pod{pod(0, nil), pod(1, nil), pod(2, nil)}
	metricsOf := func(values ...int64) podMetrics {
		m := podMetrics{}
		for i, v := range values {
			m[fmt.Sprintf("p%d", i)] = podMetric{value: v, timestamp: now}
		}
		return m
	}
	for _, c := range []struct {
		metrics podMetrics
		want    int32
	}{
		{metricsOf(20000, 20000, 20000), 6}, {metricsOf(10000, 10000, 10000), 3}, {metricsOf(10900, 10900, 10900), 3},
		{metricsOf(3000, 3000, 3000), 1},
		{metricsOf(30000, 30000), 6}, {metricsOf(1000, 1000), 2},
	} {
		out, err := newSession(3, pods).byAverage(pods, c.metrics, "", 10000)
		require.NoError(t, err)
		require.Equal(t, c.want, out.replicas, "%v", c.metrics)
	}
}

func TestByValueAndByShare(t *testing.T) {
	pods := []*corev1.Pod{pod(0, nil), pod(1, nil), pod(2, unready)}
	for _, c := range []struct {
		current        int32
		value, target  int64
		whole, average int32
	}{
		{3, 20000, 10000, 4, 2}, // two pods are ready; the share of each of the three replicas is below the target
		{3, 10500, 10000, 3, 2},
		{3, 30000, 10000, 6, 3},
		{3, 2000, 10000, 1, 1},
		{0, 25000, 10000, 3, 3}, // from zero
		{0, 0, 10000, 0, 0},
	} {
		s := newSession(c.current, pods)
		out, err := s.byValue(c.value, c.target)
		require.NoError(t, err)
		require.Equal(t, c.whole, out.replicas, "value: %+v", c)
		require.Equal(t, c.average, s.byShare(c.value, c.target).replicas, "average: %+v", c)
	}
}

// A rollout of two replicas has a third pod for a while. Metrics of every type that are on target leave the scale at
// two.
func TestTolerance_KeepsTheScaleOfTheSpec(t *testing.T) {
	pods := []*corev1.Pod{pod(0, nil), pod(1, nil), pod(2, nil)}
	each := func() podMetrics { return podMetrics{"p0": {value: 510}, "p1": {value: 510}, "p2": {value: 510}} }
	for _, spec := range []int32{2, 4} {
		s := newSession(spec, pods)
		s.target.Status.Replicas = 3
		share := s.byShare(31000, 10000)
		require.Equal(t, spec, share.replicas)
		require.EqualValues(t, 10334, share.value, "the average of the existing pods")
		value, err := s.byValue(10500, 10000)
		require.NoError(t, err)
		require.Equal(t, spec, value.replicas)
		average, err := s.byAverage(pods, each(), "", 500)
		require.NoError(t, err)
		require.Equal(t, spec, average.replicas)
		utilization, err := s.byUtilization(pods, each(), corev1.ResourceCPU, "", 50)
		require.NoError(t, err)
		require.Equal(t, spec, utilization.replicas)

		require.EqualValues(t, 5, s.byShare(50000, 10000).replicas, "off target it scales by the metric")
		require.EqualValues(t, 1, s.byShare(10000, 10000).replicas)
		require.EqualValues(t, 0, s.byShare(0, 10000).replicas)
	}
	s := newSession(2, pods)
	s.target.Status.Replicas = 0
	require.EqualValues(t, 3, s.byShare(30000, 10000).replicas, "no pod has a share")
}

func TestMilli_ReturnsTheNearestNumber(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "1": 1000, "1500m": 1500, "-2": -2000, "9P": 9_000_000_000_000_000_000,
		"10P": math.MaxInt64, "4e21": math.MaxInt64, "1e999": math.MaxInt64, "-4e21": -math.MaxInt64} {
		require.Equal(t, want, milli(resource.MustParse(text)), text)
	}
}

func TestTolerance_ComesFromTheBehaviorOfTheSpec(t *testing.T) {
	s := newSession(10, nil)
	require.True(t, s.tolerance().holds(1.1))
	s.hpa.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &autoscalingv2.HPAScalingRules{Tolerance: new(resource.MustParse("0"))},
		ScaleDown: &autoscalingv2.HPAScalingRules{Tolerance: new(resource.MustParse("0.3"))},
	}
	require.False(t, s.tolerance().holds(1.01))
	require.True(t, s.tolerance().holds(0.71))
	require.False(t, s.tolerance().holds(0.69))
}
