package podautoscaler_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

// TestPodAutoscaler_KeepsItsBoundsOnARandomWalk changes the metric at random, writes to the scale as another client,
// and kills the controllers. The autoscaler itself never writes a scale outside its bounds, and when the metric is
// constant the scale becomes the one that it asks for.
func TestPodAutoscaler_KeepsItsBoundsOnARandomWalk(t *testing.T) {
	const minReplicas, maxReplicas, perPod = 2, 7, 10
	target := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
		AverageValue: resource.NewQuantity(perPod, resource.DecimalSI)}
	s := newScaled(t, autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
		External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "waiting"}, Target: target}})
	_, err := s.Client.AutoscalingV2().HorizontalPodAutoscalers("default").Patch(s.Context(), "web", types.MergePatchType,
		fmt.Appendf(nil,
			`{"spec":{"minReplicas":%d,"maxReplicas":%d,"behavior":{"scaleDown":{"stabilizationWindowSeconds":60}}}}`,
			minReplicas, maxReplicas), metav1.PatchOptions{})
	require.NoError(t, err)

	var mu sync.Mutex
	var sizes []*appsv1.ReplicaSet // one state for each change of the size
	foreign := map[string]bool{}   // the resourceVersions that the test wrote
	rs := s.ReplicaSetOf("web")
	sizes = append(sizes, rs)
	stream, err := s.Client.AppsV1().ReplicaSets("default").Watch(s.Context(),
		metav1.ListOptions{ResourceVersion: rs.ResourceVersion})
	require.NoError(t, err)
	controllertest.Follow(s.Cluster, stream, func(_ watch.EventType, rs *appsv1.ReplicaSet) {
		mu.Lock()
		defer mu.Unlock()
		if *rs.Spec.Replicas != *sizes[len(sizes)-1].Spec.Replicas {
			sizes = append(sizes, rs)
		}
	})

	random := controllertest.NewRandom(t)
	const external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/waiting"
	value := 0
	for range 40 {
		switch random.IntN(4) {
		case 0, 1:
			value = random.IntN(perPod * (maxReplicas + 3))
			s.metrics.set(external, map[string]any{"timestamp": s.Now().UTC().Format(time.RFC3339),
				"value": fmt.Sprint(value)})
		case 2:
			written, err := s.Client.AppsV1().ReplicaSets("default").Patch(s.Context(), "web", types.MergePatchType,
				sized(int32(1+random.IntN(maxReplicas+3))), metav1.PatchOptions{})
			require.NoError(t, err)
			foreign[written.ResourceVersion] = true
		case 3:
			s.Restart()
		}
		for range random.IntN(30) { // a second passes with each response of the server
			s.hpa()
			s.Step(time.Second)
		}
	}
	value = perPod*4 + perPod/2 // beyond the tolerance of four replicas, so that the scale becomes five
	s.metrics.set(external, map[string]any{"timestamp": s.Now().UTC().Format(time.RFC3339), "value": fmt.Sprint(value)})
	s.Passing(5*time.Second, "the metric's scale", func() bool { return *s.ReplicaSetOf("web").Spec.Replicas == 5 })

	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d sizes", len(sizes))
	for i, rs := range sizes[1:] {
		if !foreign[rs.ResourceVersion] {
			require.GreaterOrEqual(t, *rs.Spec.Replicas, int32(minReplicas), "change %d", i)
			require.LessOrEqual(t, *rs.Spec.Replicas, int32(maxReplicas), "change %d", i)
		}
	}
}
