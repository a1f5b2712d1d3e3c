package autoscaling

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/internal/limits"
)

// The annotations that store the fields that autoscaling/v1 lacks.
const (
	metricsAnnotation        = "autoscaling.alpha.kubernetes.io/metrics"
	currentMetricsAnnotation = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation     = "autoscaling.alpha.kubernetes.io/conditions"
	behaviorAnnotation       = "autoscaling.alpha.kubernetes.io/behavior"
)

var autoscalerAnnotations = []string{metricsAnnotation, currentMetricsAnnotation, conditionsAnnotation,
	behaviorAnnotation}

// autoscalersV1 serves autoscaling/v2 as v1, which has only one metric: the pods' average CPU utilization. Everything
// else is in annotations.
func autoscalersV1(v2 *api.Resource) *api.Resource {
	r := api.ServedVersionOf(v2, "autoscaling", "v1",
		func() *autoscalingv1.HorizontalPodAutoscaler { return &autoscalingv1.HorizontalPodAutoscaler{} },
		func() runtime.Object { return &autoscalingv1.HorizontalPodAutoscalerList{} },
		toAutoscalerV1, fromAutoscalerV1)
	r.Default = api.Typed(func(h *autoscalingv1.HorizontalPodAutoscaler) { defaults.SetPtr(&h.Spec.MinReplicas, 1) })
	return r
}

func toAutoscalerV1(h *autoscalingv2.HorizontalPodAutoscaler) (*autoscalingv1.HorizontalPodAutoscaler, error) {
	out := &autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: h.ObjectMeta}
	out.Annotations = withoutAnnotations(h.Annotations)
	out.Spec = autoscalingv1.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(h.Spec.ScaleTargetRef),
		MinReplicas:    h.Spec.MinReplicas,
		MaxReplicas:    h.Spec.MaxReplicas,
	}
	var others []autoscalingv1.MetricSpec
	for i := range h.Spec.Metrics {
		m := &h.Spec.Metrics[i]
		if out.Spec.TargetCPUUtilizationPercentage == nil && isCPUUtilization(m) {
			out.Spec.TargetCPUUtilizationPercentage = m.Resource.Target.AverageUtilization
			continue
		}
		others = append(others, metricToV1(m))
	}
	out.Status = autoscalingv1.HorizontalPodAutoscalerStatus{
		ObservedGeneration: h.Status.ObservedGeneration, LastScaleTime: h.Status.LastScaleTime,
		CurrentReplicas: h.Status.CurrentReplicas, DesiredReplicas: h.Status.DesiredReplicas,
	}
	var current []autoscalingv1.MetricStatus
	for i := range h.Status.CurrentMetrics {
		m := &h.Status.CurrentMetrics[i]
		if m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil &&
			m.Resource.Name == corev1.ResourceCPU && m.Resource.Current.AverageUtilization != nil {
			out.Status.CurrentCPUUtilizationPercentage = m.Resource.Current.AverageUtilization
		}
		current = append(current, metricStatusToV1(m))
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	for _, c := range h.Status.Conditions {
		conditions = append(conditions, conditionToV1(c))
	}
	for _, part := range []struct {
		annotation string
		value      any
		present    bool
	}{
		{metricsAnnotation, others, len(others) > 0},
		{currentMetricsAnnotation, current, len(current) > 0},
		{conditionsAnnotation, conditions, len(conditions) > 0},
		{behaviorAnnotation, behaviorToV1(h.Spec.Behavior), h.Spec.Behavior != nil},
	} {
		if !part.present {
			continue
		}
		text, err := json.Marshal(part.value)
		if err != nil {
			return nil, fmt.Errorf("encoding annotation %s: %w", part.annotation, err)
		}
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[part.annotation] = string(text)
	}
	return out, nil
}

// fromAutoscalerV1 reverses toAutoscalerV1. It ignores an annotation that is not JSON.
func fromAutoscalerV1(h *autoscalingv1.HorizontalPodAutoscaler) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	out := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: h.ObjectMeta}
	out.Annotations = withoutAnnotations(h.Annotations)
	out.Spec = autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(h.Spec.ScaleTargetRef),
		MinReplicas:    h.Spec.MinReplicas,
		MaxReplicas:    h.Spec.MaxReplicas,
	}
	var others []autoscalingv1.MetricSpec
	if carried(h, metricsAnnotation, &others) {
		for i := range others {
			out.Spec.Metrics = append(out.Spec.Metrics, metricFromV1(&others[i]))
		}
	}
	if percent := h.Spec.TargetCPUUtilizationPercentage; percent != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, autoscalingv2.MetricSpec{
			Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU,
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
					AverageUtilization: percent},
			},
		})
	}
	var behavior *behaviorV1
	if carried(h, behaviorAnnotation, &behavior) {
		out.Spec.Behavior = behavior.toV2()
	}
	fromAutoscalerV1Status(h, out)
	return out, nil
}

func fromAutoscalerV1Status(h *autoscalingv1.HorizontalPodAutoscaler, out *autoscalingv2.HorizontalPodAutoscaler) {
	out.Status = autoscalingv2.HorizontalPodAutoscalerStatus{
		ObservedGeneration: h.Status.ObservedGeneration, LastScaleTime: h.Status.LastScaleTime,
		CurrentReplicas: h.Status.CurrentReplicas, DesiredReplicas: h.Status.DesiredReplicas,
	}
	var current []autoscalingv1.MetricStatus
	switch percent := h.Status.CurrentCPUUtilizationPercentage; {
	case carried(h, currentMetricsAnnotation, &current): // it has more details
		for i := range current {
			out.Status.CurrentMetrics = append(out.Status.CurrentMetrics, metricStatusFromV1(&current[i]))
		}
	case percent != nil:
		out.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{
			Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricStatus{
				Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: percent},
			},
		}}
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	if carried(h, conditionsAnnotation, &conditions) {
		for _, c := range conditions {
			out.Status.Conditions = append(out.Status.Conditions, conditionFromV1(c))
		}
	}
}

// carried decodes an annotation and reports whether it succeeded. It ignores an annotation that has a quantity out of
// bounds or cannot be decoded.
func carried(h *autoscalingv1.HorizontalPodAutoscaler, annotation string, into any) bool {
	text, ok := h.Annotations[annotation]
	return ok && !limits.SuspectQuantity([]byte(text)) && json.Unmarshal([]byte(text), into) == nil
}

// withoutAnnotations returns a copy of the map without the annotations above.
func withoutAnnotations(annotations map[string]string) map[string]string {
	if !slices.ContainsFunc(autoscalerAnnotations, func(name string) bool { _, ok := annotations[name]; return ok }) {
		return maps.Clone(annotations)
	}
	rest := maps.Clone(annotations)
	for _, name := range autoscalerAnnotations {
		delete(rest, name)
	}
	if len(rest) == 0 {
		return nil
	}
	return rest
}

func isCPUUtilization(m *autoscalingv2.MetricSpec) bool {
	return m.Type == autoscalingv2.ResourceMetricSourceType && m.Resource != nil &&
		m.Resource.Name == corev1.ResourceCPU &&
		m.Resource.Target.AverageUtilization != nil && m.Resource.Target.AverageValue == nil
}

func conditionToV1(c autoscalingv2.HorizontalPodAutoscalerCondition) autoscalingv1.HorizontalPodAutoscalerCondition {
	return autoscalingv1.HorizontalPodAutoscalerCondition{
		Type: autoscalingv1.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status,
		LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		ObservedGeneration: c.ObservedGeneration,
	}
}

func conditionFromV1(c autoscalingv1.HorizontalPodAutoscalerCondition) autoscalingv2.HorizontalPodAutoscalerCondition {
	return autoscalingv2.HorizontalPodAutoscalerCondition{
		Type: autoscalingv2.HorizontalPodAutoscalerConditionType(c.Type), Status: c.Status,
		LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		ObservedGeneration: c.ObservedGeneration,
	}
}

// behaviorV1 is a behavior in the form that kube-apiserver writes into the annotation, with Go's field names.
type behaviorV1 struct {
	ScaleUp, ScaleDown *scalingRulesV1
}

type scalingRulesV1 struct {
	StabilizationWindowSeconds *int32
	SelectPolicy               *autoscalingv2.ScalingPolicySelect
	Policies                   []scalingPolicyV1
	Tolerance                  *resource.Quantity
}

type scalingPolicyV1 struct {
	Type          autoscalingv2.HPAScalingPolicyType
	Value         int32
	PeriodSeconds int32
}

func behaviorToV1(b *autoscalingv2.HorizontalPodAutoscalerBehavior) *behaviorV1 {
	if b == nil {
		return nil
	}
	rules := func(r *autoscalingv2.HPAScalingRules) *scalingRulesV1 {
		if r == nil {
			return nil
		}
		out := &scalingRulesV1{StabilizationWindowSeconds: r.StabilizationWindowSeconds, SelectPolicy: r.SelectPolicy,
			Tolerance: r.Tolerance}
		for _, p := range r.Policies {
			out.Policies = append(out.Policies, scalingPolicyV1(p))
		}
		return out
	}
	return &behaviorV1{ScaleUp: rules(b.ScaleUp), ScaleDown: rules(b.ScaleDown)}
}

func (b *behaviorV1) toV2() *autoscalingv2.HorizontalPodAutoscalerBehavior {
	if b == nil {
		return nil
	}
	rules := func(r *scalingRulesV1) *autoscalingv2.HPAScalingRules {
		if r == nil {
			return nil
		}
		out := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: r.StabilizationWindowSeconds,
			SelectPolicy: r.SelectPolicy, Tolerance: r.Tolerance}
		for _, p := range r.Policies {
			out.Policies = append(out.Policies, autoscalingv2.HPAScalingPolicy(p))
		}
		return out
	}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(b.ScaleUp), ScaleDown: rules(b.ScaleDown)}
}
