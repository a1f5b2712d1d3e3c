package builtin_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
)

func servedVersion(t *testing.T, gvk schema.GroupVersionKind) *api.Resource {
	t.Helper()
	r := api.NewRegistry(builtin.Kinds()...).Snapshot().Kind(gvk)
	require.NotNil(t, r)
	require.NotNil(t, r.Conversion)
	return r
}

var (
	autoscalerV1 = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "HorizontalPodAutoscaler"}
	newEvent     = schema.GroupVersionKind{Group: "events.k8s.io", Version: "v1", Kind: "Event"}
)

// Events are converted by renaming fields, so random objects survive both directions.
func TestConversion_EventsConvertWithoutLossBothWays(t *testing.T) {
	t.Parallel()
	r := servedVersion(t, newEvent)
	for seed := range int64(50) {
		stored := r.Stored().New()
		filler(seed).Fill(stored)
		stored.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		shown, err := r.Conversion.ConvertTo(stored)
		require.NoError(t, err)
		back, err := r.Conversion.ConvertFrom(shown)
		require.NoError(t, err)
		require.True(t, equality.Semantic.DeepEqual(stored, back), "seed %d", seed)

		fresh := r.New()
		filler(seed).Fill(fresh)
		fresh.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		read, err := r.Conversion.ConvertFrom(fresh)
		require.NoError(t, err)
		again, err := r.Conversion.ConvertTo(read)
		require.NoError(t, err)
		require.True(t, equality.Semantic.DeepEqual(fresh, again), "seed %d", seed)
	}
}

func everyMetric() []autoscalingv2.MetricSpec {
	q := func(s string) *resource.Quantity { v := resource.MustParse(s); return &v }
	id := autoscalingv2.MetricIdentifier{Name: "m",
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}
	ref := autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Service", Name: "web"}
	value := autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: q("10")}
	average := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: q("100m")}
	utilization := autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
		AverageUtilization: ptr.To[int32](60)}
	return []autoscalingv2.MetricSpec{
		{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{DescribedObject: ref,
			Metric: id, Target: value}},
		{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{DescribedObject: ref,
			Metric: id, Target: average}},
		{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: id, Target: average}},
		{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: id,
			Target: value}},
		{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: id,
			Target: average}},
		{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: "cpu",
			Target: average}},
		{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: "memory",
			Target: utilization}},
		{Type: autoscalingv2.ContainerResourceMetricSourceType,
			ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: "cpu", Container: "c",
				Target: utilization}},
		{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: "cpu",
			Target: utilization}},
	}
}

func everyMetricStatus() []autoscalingv2.MetricStatus {
	q := func(s string) *resource.Quantity { v := resource.MustParse(s); return &v }
	id := autoscalingv2.MetricIdentifier{Name: "m"}
	value := autoscalingv2.MetricValueStatus{Value: q("10")}
	average := autoscalingv2.MetricValueStatus{AverageValue: q("100m")}
	utilization := autoscalingv2.MetricValueStatus{AverageUtilization: ptr.To[int32](61), AverageValue: q("610m")}
	return []autoscalingv2.MetricStatus{
		{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricStatus{Metric: id,
			Current: value}},
		{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricStatus{Metric: id,
			Current: average}},
		{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricStatus{Metric: id, Current: average}},
		{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricStatus{Metric: id,
			Current: average}},
		{Type: autoscalingv2.ContainerResourceMetricSourceType,
			ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: "cpu", Container: "c",
				Current: utilization}},
		{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{Name: "cpu",
			Current: utilization}},
	}
}

func TestConversion_AutoscalersConvertWithoutLoss(t *testing.T) {
	t.Parallel()
	r := servedVersion(t, autoscalerV1)
	stored := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{"mine": "kept"}},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment",
				Name: "web"},
			MinReplicas: ptr.To[int32](2), MaxReplicas: 9, Metrics: everyMetric(),
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{
				StabilizationWindowSeconds: ptr.To[int32](60),
				SelectPolicy:               ptr.To(autoscalingv2.MaxChangePolicySelect),
				Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 4,
					PeriodSeconds: 15}},
				Tolerance: ptr.To(resource.MustParse("50m")),
			}},
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			ObservedGeneration: ptr.To[int64](3), CurrentReplicas: 3, DesiredReplicas: 4,
			CurrentMetrics: everyMetricStatus(),
			Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.AbleToScale,
				Status: corev1.ConditionTrue, Reason: "Ready", Message: "m"}},
		},
	}
	before := stored.DeepCopy()
	obj, err := r.Conversion.ConvertTo(stored)
	require.NoError(t, err)
	require.Equal(t, before, stored, "showing an object changed it")
	shown := obj.(*autoscalingv1.HorizontalPodAutoscaler)
	require.EqualValues(t, 60, *shown.Spec.TargetCPUUtilizationPercentage)
	require.EqualValues(t, 61, *shown.Status.CurrentCPUUtilizationPercentage)
	require.JSONEq(t,
		`{"ScaleUp":null,"ScaleDown":{"StabilizationWindowSeconds":60,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":"50m"}}`,
		shown.Annotations["autoscaling.alpha.kubernetes.io/behavior"])
	var others []map[string]any
	require.NoError(t, json.Unmarshal([]byte(shown.Annotations["autoscaling.alpha.kubernetes.io/metrics"]), &others))
	require.Len(t, others, len(stored.Spec.Metrics)-1)
	require.Equal(t, map[string]any{"name": "memory", "targetAverageUtilization": 60.0}, others[6]["resource"])
	back, err := r.Conversion.ConvertFrom(shown)
	require.NoError(t, err)
	require.True(t, equality.Semantic.DeepEqual(stored, back), "%v\n%v", stored, back)
}

// Values of autoscaling/v1 survive a round trip through v2.
func TestConversion_AutoscalerOfTheOldVersionConvertsBack(t *testing.T) {
	t.Parallel()
	r := servedVersion(t, autoscalerV1)
	fresh := &autoscalingv1.HorizontalPodAutoscaler{
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{MaxReplicas: 3,
			TargetCPUUtilizationPercentage: ptr.To[int32](50)},
		Status: autoscalingv1.HorizontalPodAutoscalerStatus{CurrentReplicas: 1},
	}
	stored, err := r.Conversion.ConvertFrom(fresh)
	require.NoError(t, err)
	require.Len(t, stored.(*autoscalingv2.HorizontalPodAutoscaler).Spec.Metrics, 1)
	again, err := r.Conversion.ConvertTo(stored)
	require.NoError(t, err)
	require.True(t, equality.Semantic.DeepEqual(fresh, again))

	// An annotation that is not JSON is ignored and dropped.
	fresh.Annotations = map[string]string{"autoscaling.alpha.kubernetes.io/metrics": "{"}
	stored, err = r.Conversion.ConvertFrom(fresh)
	require.NoError(t, err)
	require.Empty(t, stored.GetAnnotations())
}
