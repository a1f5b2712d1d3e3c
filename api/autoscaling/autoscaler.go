package autoscaling

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/resourcelist"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

func horizontalPodAutoscalers() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler", Plural: "horizontalpodautoscalers",
			Namespaced: true,
			ShortNames: []string{"hpa"},
			Categories: []string{"all"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &autoscalingv2.HorizontalPodAutoscaler{} },
			NewList: func() runtime.Object { return &autoscalingv2.HorizontalPodAutoscalerList{} },
		},
		Strategy: api.Strategy{
			Default:  api.Typed(defaultAutoscaler),
			Validate: api.Check(validateAutoscaler),
			Status: api.StatusOf(
				func(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscalerStatus {
					return &h.Status
				},
				(*autoscalingv2.HorizontalPodAutoscalerStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).CheckedBy(
				api.CheckUpdate(func(h, _ *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
					return validate.Counts(field.NewPath("status"),
						[]validate.Count{{"currentReplicas", h.Status.CurrentReplicas},
							{"desiredReplicas", h.Status.DesiredReplicas}})
				})),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Reference", "string",
					autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["scaleTargetRef"]),
				table.Column("Targets", "string", autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["metrics"]),
				table.Column("MinPods", "string",
					autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["minReplicas"]),
				table.Column("MaxPods", "string",
					autoscalingv2.HorizontalPodAutoscalerSpec{}.SwaggerDoc()["maxReplicas"]),
				table.Column("Replicas", "string",
					autoscalingv2.HorizontalPodAutoscalerStatus{}.SwaggerDoc()["currentReplicas"]),
				table.Age,
			},
			Cells: api.Row(func(h *autoscalingv2.HorizontalPodAutoscaler) []any {
				minimum := table.Unset
				if h.Spec.MinReplicas != nil {
					minimum = strconv.Itoa(int(*h.Spec.MinReplicas))
				}
				return []any{
					h.Name, h.Spec.ScaleTargetRef.Kind + "/" + h.Spec.ScaleTargetRef.Name, targetsCell(h.Spec.Metrics,
						h.Status.CurrentMetrics),
					minimum, int64(h.Spec.MaxReplicas), int64(h.Status.CurrentReplicas),
					table.AgeOf(h.CreationTimestamp),
				}
			}),
		},
	}
}

func defaultAutoscaler(h *autoscalingv2.HorizontalPodAutoscaler) {
	defaults.SetPtr(&h.Spec.MinReplicas, 1)
	if len(h.Spec.Metrics) == 0 {
		h.Spec.Metrics = []autoscalingv2.MetricSpec{{
			Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU,
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
					AverageUtilization: ptr.To[int32](80)},
			},
		}}
	}
	if b := h.Spec.Behavior; b != nil {
		b.ScaleUp = scalingRules(b.ScaleUp, autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: ptr.To[int32](0),
			Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy,
				Value: 4, PeriodSeconds: 15}, {Type: autoscalingv2.PercentScalingPolicy, Value: 100,
				PeriodSeconds: 15}},
		})
		b.ScaleDown = scalingRules(b.ScaleDown, autoscalingv2.HPAScalingRules{
			Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100,
				PeriodSeconds: 15}},
		})
	}
}

// scalingRules completes the rules for one direction with Kubernetes' defaults.
func scalingRules(rules *autoscalingv2.HPAScalingRules,
	standard autoscalingv2.HPAScalingRules) *autoscalingv2.HPAScalingRules {
	if rules == nil {
		rules = &autoscalingv2.HPAScalingRules{}
	}
	defaults.SetPtr(&rules.SelectPolicy, autoscalingv2.MaxChangePolicySelect)
	if rules.StabilizationWindowSeconds == nil {
		rules.StabilizationWindowSeconds = standard.StabilizationWindowSeconds
	}
	if len(rules.Policies) == 0 {
		rules.Policies = standard.Policies
	}
	return rules
}

// maxMetrics limits the metrics of one autoscaler. For each of them the controller makes a request or more every 15
// seconds. Kubernetes has no such limit. Autoscalers in use have a few.
const maxMetrics = 100

func validateAutoscaler(h *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	specPath, spec := field.NewPath("spec"), &h.Spec
	var errs field.ErrorList
	if spec.MinReplicas != nil && *spec.MinReplicas < 0 {
		errs = append(errs, field.Invalid(specPath.Child("minReplicas"), *spec.MinReplicas,
			"must be greater than or equal to 0"))
	}
	if spec.MaxReplicas < 1 {
		errs = append(errs, field.Invalid(specPath.Child("maxReplicas"), spec.MaxReplicas, "must be greater than 0"))
	}
	if spec.MinReplicas != nil && spec.MaxReplicas < *spec.MinReplicas {
		errs = append(errs, field.Invalid(specPath.Child("maxReplicas"), spec.MaxReplicas,
			"must be greater than or equal to `minReplicas`"))
	}
	errs = append(errs, validateReference(spec.ScaleTargetRef, specPath.Child("scaleTargetRef"))...)
	if len(spec.Metrics) > maxMetrics {
		return append(errs, field.TooMany(specPath.Child("metrics"), len(spec.Metrics), maxMetrics))
	}
	for i := range spec.Metrics {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validateMetric(&spec.Metrics[i], specPath.Child("metrics").Index(i))...)
	}
	if spec.MinReplicas != nil && *spec.MinReplicas == 0 && !measuresWithoutPods(spec.Metrics) {
		errs = append(errs, field.Forbidden(specPath.Child("metrics"), "must specify at least one Object or External "+
			"metric to support scaling to zero replicas"))
	}
	if b := spec.Behavior; b != nil {
		errs = append(errs, validateScalingRules(b.ScaleUp, specPath.Child("behavior", "scaleUp"))...)
		errs = append(errs, validateScalingRules(b.ScaleDown, specPath.Child("behavior", "scaleDown"))...)
	}
	return errs
}

// measuresWithoutPods reports whether one of the metrics has a value while no pod is running.
func measuresWithoutPods(metrics []autoscalingv2.MetricSpec) bool {
	return slices.ContainsFunc(metrics, func(m autoscalingv2.MetricSpec) bool {
		return m.Type == autoscalingv2.ObjectMetricSourceType || m.Type == autoscalingv2.ExternalMetricSourceType
	})
}

func validateReference(ref autoscalingv2.CrossVersionObjectReference, path *field.Path) field.ErrorList {
	return append(validate.RequiredSegment(path.Child("kind"), ref.Kind),
		validate.RequiredSegment(path.Child("name"), ref.Name)...)
}

// metricSource is one of the types of metric source.
type metricSource struct {
	kind  autoscalingv2.MetricSourceType
	name  string
	set   bool
	check func(path *field.Path) field.ErrorList
}

func metricSources(m *autoscalingv2.MetricSpec) []metricSource {
	return []metricSource{
		{autoscalingv2.ObjectMetricSourceType, "object", m.Object != nil, func(path *field.Path) field.ErrorList {
			errs := validateReference(m.Object.DescribedObject, path.Child("describedObject"))
			errs = append(errs, requiredMetric(m.Object.Metric.Name, path)...)
			return append(errs, validateTarget(&m.Object.Target, path.Child("target"), objectTarget)...)
		}},
		{autoscalingv2.ExternalMetricSourceType, "external", m.External != nil, func(path *field.Path) field.ErrorList {
			return append(requiredMetric(m.External.Metric.Name, path),
				validateTarget(&m.External.Target, path.Child("target"), externalTarget)...)
		}},
		{autoscalingv2.PodsMetricSourceType, "pods", m.Pods != nil, func(path *field.Path) field.ErrorList {
			return append(requiredMetric(m.Pods.Metric.Name, path), validateTarget(&m.Pods.Target, path.Child("target"),
				podsTarget)...)
		}},
		{autoscalingv2.ResourceMetricSourceType, "resource", m.Resource != nil, func(path *field.Path) field.ErrorList {
			var errs field.ErrorList
			if m.Resource.Name == "" {
				errs = append(errs, field.Required(path.Child("name"), "must specify a resource name"))
			}
			return append(errs, validateTarget(&m.Resource.Target, path.Child("target"), resourceTarget)...)
		}},
		{autoscalingv2.ContainerResourceMetricSourceType, "containerResource", m.ContainerResource != nil,
			func(path *field.Path) field.ErrorList {
				var errs field.ErrorList
				if r := m.ContainerResource; r.Name == "" {
					errs = append(errs, field.Required(path.Child("name"), "must specify a resource name"))
				} else {
					errs = append(errs, resourcelist.ValidateContainerName(r.Name, path.Child("name"))...)
				}
				if c := m.ContainerResource.Container; c == "" {
					errs = append(errs, field.Required(path.Child("container"), "must specify a container"))
				} else {
					errs = append(errs, validate.DnsLabel(path.Child("container"), c)...)
				}
				return append(errs,
					validateTarget(&m.ContainerResource.Target, path.Child("target"), resourceTarget)...)
			}},
	}
}

// validateMetric checks the first source that is set, even if the metric's type names another one.
func validateMetric(m *autoscalingv2.MetricSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if m.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric source type"))
	} else {
		errs = append(errs, validate.OneOf(path.Child("type"), m.Type, autoscalingv2.ContainerResourceMetricSourceType,
			autoscalingv2.ExternalMetricSourceType,
			autoscalingv2.ObjectMetricSourceType, autoscalingv2.PodsMetricSourceType,
			autoscalingv2.ResourceMetricSourceType)...)
	}
	sources := metricSources(m)
	set := 0
	for _, source := range sources {
		if field.Enough(errs) {
			break
		}
		if source.set {
			if set++; set == 1 {
				errs = append(errs, source.check(path.Child(source.name))...)
			}
		}
	}
	for _, source := range sources {
		if field.Enough(errs) {
			break
		}
		switch {
		case source.kind == m.Type && !source.set:
			errs = append(errs,
				field.Required(path.Child(source.name), "must populate information for the given metric source"))
		case source.kind != m.Type && source.set && set > 1:
			errs = append(errs, field.Forbidden(path.Child(source.name), "must populate the given metric source only"))
		}
	}
	return errs
}

func requiredMetric(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path.Child("metric", "name"), "must specify a metric name")}
	}
	return validate.Segment(path.Child("metric", "name"), name)
}

// The kinds of sources of a metric. They decide which types of target are allowed.
const (
	objectTarget = iota
	externalTarget
	podsTarget
	resourceTarget
)

func validateTarget(t *autoscalingv2.MetricTarget, path *field.Path, source int) field.ErrorList {
	var errs field.ErrorList
	switch t.Type {
	case autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType, autoscalingv2.AverageValueMetricType:
	case "":
		errs = append(errs, field.Required(path.Child("type"), "must specify a metric target type"))
		fallthrough
	default:
		errs = append(errs,
			field.Invalid(path.Child("type"), t.Type, "must be either Utilization, Value, or AverageValue"))
	}
	if t.Value != nil && t.Value.Sign() != 1 {
		errs = append(errs, field.Invalid(path.Child("value"), t.Value.String(), "must be positive"))
	}
	if t.AverageValue != nil && t.AverageValue.Sign() != 1 {
		errs = append(errs, field.Invalid(path.Child("averageValue"), t.AverageValue.String(), "must be positive"))
	}
	if t.AverageUtilization != nil && *t.AverageUtilization < 1 {
		errs = append(errs, field.Invalid(path.Child("averageUtilization"), *t.AverageUtilization,
			"must be greater than 0"))
	}
	value, average, utilization := t.Value != nil, t.AverageValue != nil, t.AverageUtilization != nil
	switch {
	case source == objectTarget && !value && !average:
		errs = append(errs,
			field.Required(path.Child("averageValue"), "must set either a target value or averageValue"))
	case source == externalTarget && !value && !average:
		errs = append(errs,
			field.Required(path.Child("averageValue"), "must set either a target value for metric or a per-pod target"))
	case source == externalTarget && value && average:
		errs = append(errs,
			field.Forbidden(path.Child("value"), "may not set both a target value for metric and a per-pod target"))
	case source == podsTarget && !average:
		errs = append(errs, field.Required(path.Child("averageValue"), "must specify a positive target averageValue"))
	case source == resourceTarget && !utilization && !average:
		errs = append(errs, field.Required(path.Child("averageUtilization"),
			"must set either a target raw value or a target utilization"))
	case source == resourceTarget && utilization && average:
		errs = append(errs,
			field.Forbidden(path.Child("averageValue"), "may not set both a target raw value and a target utilization"))
	}
	return errs
}

func validateScalingRules(r *autoscalingv2.HPAScalingRules, path *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	var errs field.ErrorList
	const hour, halfHour = 3600, 1800
	if s := r.StabilizationWindowSeconds; s != nil {
		path := path.Child("stabilizationWindowSeconds")
		if *s < 0 {
			errs = append(errs, field.Invalid(path, *s, "must be greater than or equal to zero"))
		}
		if *s > hour {
			errs = append(errs, field.Invalid(path, *s, fmt.Sprintf("must be less than or equal to %v", hour)))
		}
	}
	if p := r.SelectPolicy; p != nil {
		errs = append(errs, validate.OneOf(path.Child("selectPolicy"), *p, autoscalingv2.DisabledPolicySelect,
			autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect)...)
	}
	if len(r.Policies) == 0 {
		errs = append(errs, field.Required(path.Child("policies"), "must specify at least one Policy"))
	}
	for i, p := range r.Policies {
		if field.Enough(errs) {
			break
		}
		path := path.Child("policies").Index(i)
		errs = append(errs, validate.OneOf(path.Child("type"), p.Type, autoscalingv2.PercentScalingPolicy,
			autoscalingv2.PodsScalingPolicy)...)
		errs = append(errs, aboveZero(path.Child("value"), p.Value)...)
		errs = append(errs, aboveZero(path.Child("periodSeconds"), p.PeriodSeconds)...)
		if p.PeriodSeconds > halfHour {
			errs = append(errs, field.Invalid(path.Child("periodSeconds"), p.PeriodSeconds,
				fmt.Sprintf("must be less than or equal to %v", halfHour)))
		}
	}
	if t := r.Tolerance; t != nil && t.Sign() < 0 {
		errs = append(errs, field.Invalid(path.Child("tolerance"), t.String(), "must be greater than or equal to 0"))
	}
	return errs
}

func aboveZero(path *field.Path, n int32) field.ErrorList {
	if n > 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, n, "must be greater than zero")}
}

// targetsCell shows two metrics as current/target, and the number of the others.
func targetsCell(specs []autoscalingv2.MetricSpec, current []autoscalingv2.MetricStatus) string {
	if len(specs) == 0 {
		return table.None
	}
	const shown = 2
	var list []string
	for i := range min(len(specs), shown) {
		var now *autoscalingv2.MetricStatus
		if i < len(current) {
			now = &current[i]
		}
		list = append(list, targetCell(&specs[i], now))
	}
	cell := strings.Join(list, ", ")
	if len(specs) > shown {
		cell += fmt.Sprintf(" + %d more...", len(specs)-shown)
	}
	return cell
}

func targetCell(m *autoscalingv2.MetricSpec, now *autoscalingv2.MetricStatus) string {
	var target autoscalingv2.MetricTarget
	var is autoscalingv2.MetricValueStatus
	name := ""
	switch {
	case m.Resource != nil:
		name, target = string(m.Resource.Name)+": ", m.Resource.Target
		if now != nil && now.Resource != nil {
			is = now.Resource.Current
		}
	case m.ContainerResource != nil:
		name, target = string(m.ContainerResource.Name)+": ", m.ContainerResource.Target
		if now != nil && now.ContainerResource != nil {
			is = now.ContainerResource.Current
		}
	case m.Pods != nil:
		target = m.Pods.Target
		if now != nil && now.Pods != nil {
			is = now.Pods.Current
		}
	case m.Object != nil:
		target = m.Object.Target
		if now != nil && now.Object != nil {
			is = now.Object.Current
		}
	case m.External != nil:
		target = m.External.Target
		if now != nil && now.External != nil {
			is = now.External.Current
		}
	default:
		return "<unknown type>"
	}
	ratio := func(q, now *resource.Quantity, suffix string) string {
		if now == nil {
			return name + table.Unknown + "/" + q.String() + suffix
		}
		return name + now.String() + "/" + q.String() + suffix
	}
	switch {
	case target.AverageValue != nil:
		suffix := ""
		if m.Object != nil || m.External != nil {
			suffix = " (avg)"
		}
		return ratio(target.AverageValue, is.AverageValue, suffix)
	case target.Value != nil:
		return ratio(target.Value, is.Value, "")
	case target.AverageUtilization != nil && is.AverageUtilization != nil:
		return fmt.Sprintf("%s%d%%/%d%%", name, *is.AverageUtilization, *target.AverageUtilization)
	case target.AverageUtilization != nil:
		return fmt.Sprintf("%s%s/%d%%", name, table.Unknown, *target.AverageUtilization)
	}
	return name + table.Unknown + "/<auto>"
}
