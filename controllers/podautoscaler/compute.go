package podautoscaler

import (
	"context"
	"errors"
	"fmt"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// proposal is the replica count that one metric asks for.
type proposal struct {
	replicas int32
	name     string // of the metric, in events
	status   autoscalingv2.MetricStatus
}

// compute reads all metrics and returns the largest replica count with the name of its metric. If some metrics cannot
// be read, the others can scale the target up, but not down.
func (s *session) compute(ctx context.Context) (replicas int32, metric string, err error) {
	if err := s.selectPods(); err != nil {
		return 0, "", err
	}
	var statuses []autoscalingv2.MetricStatus
	var firstErr error
	var firstReason string
	var firstSpec *autoscalingv2.MetricSpec
	invalid, specs := 0, s.hpa.Spec.Metrics
	for i := range specs {
		p, err := s.measured(ctx, &specs[i])
		if err != nil {
			reason := sources[specs[i].Type].reason
			s.recorder.Event(s.hpa, corev1.EventTypeWarning, reason, err.Error())
			if firstErr == nil {
				firstErr, firstReason, firstSpec = err, reason, &specs[i]
			}
			invalid++
			continue
		}
		statuses = append(statuses, p.status)
		if metric == "" || p.replicas > replicas {
			replicas, metric = p.replicas, p.name
		}
	}
	s.hpa.Status.CurrentMetrics = statuses
	if invalid == len(specs) || invalid > 0 && replicas < s.target.Spec.Replicas {
		s.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, firstReason,
			"the HPA was unable to compute the replica count: %v", firstErr)
		return 0, "", fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", invalid,
			len(specs), failure(firstSpec, firstErr))
	}
	s.condition(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound",
		"the HPA was able to successfully calculate a replica count from %s", metric)
	return replicas, metric, nil
}

// selectPods reads the selector of the target. It fails if the selector matches pods of another autoscaler.
func (s *session) selectPods() error {
	text := s.target.Status.Selector
	if text == "" {
		s.recorder.Event(s.hpa, corev1.EventTypeWarning, "SelectorRequired", "selector is required")
		s.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "InvalidSelector",
			"the HPA target's scale is missing a selector")
		return invalidSpec{errors.New("selector is required")}
	}
	selector, err := labels.Parse(text)
	if err != nil {
		message := fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v", err)
		s.recorder.Event(s.hpa, corev1.EventTypeWarning, "InvalidSelector", message)
		s.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "InvalidSelector", "%s", message)
		return invalidSpec{errors.New(message)}
	}
	s.selector = selector
	others, err := s.ambiguous()
	if err != nil {
		return err
	}
	if len(others) > 0 {
		err := fmt.Errorf("pods by selector %v are controlled by multiple HPAs: %v", text, append(others, s.key))
		s.recorder.Event(s.hpa, corev1.EventTypeWarning, "AmbiguousSelector", err.Error())
		s.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "AmbiguousSelector", "%v", err)
		return err
	}
	return nil
}

// failure wraps the error of a metric as the event about all metrics reports it, in kube-controller-manager's words.
// The condition and the metric's own event have the error alone.
func failure(spec *autoscalingv2.MetricSpec, err error) error {
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		return fmt.Errorf("failed to get %s resource metric value: %w", spec.Resource.Name, err)
	case autoscalingv2.ContainerResourceMetricSourceType:
		return fmt.Errorf("failed to get %s container metric value: %w", spec.ContainerResource.Container, err)
	case autoscalingv2.PodsMetricSourceType:
		return fmt.Errorf("failed to get pods metric value: %w", err)
	case autoscalingv2.ObjectMetricSourceType:
		if spec.Object.Target.Type == autoscalingv2.AverageValueMetricType {
			err = fmt.Errorf("failed to get %s object metric: %w", spec.Object.Metric.Name, err)
		}
		return fmt.Errorf("failed to get object metric value: %w", err)
	case autoscalingv2.ExternalMetricSourceType:
		name := spec.External.Metric.Name
		if spec.External.Target.AverageValue != nil {
			err = fmt.Errorf("failed to get %s external metric: %w", name, err)
		} else {
			err = fmt.Errorf("failed to get external metric %s: %w", name, err)
		}
		return fmt.Errorf("failed to get %s external metric value: %w", name, err)
	}
	return err
}

// sources maps each type of metric to the reason of its failures and the function that computes a replica count.
var sources map[autoscalingv2.MetricSourceType]struct {
	reason  string
	propose func(*session, context.Context, *autoscalingv2.MetricSpec) (proposal, error)
}

func init() { // as an initializer it would be a cycle
	type source = struct {
		reason  string
		propose func(*session, context.Context, *autoscalingv2.MetricSpec) (proposal, error)
	}
	sources = map[autoscalingv2.MetricSourceType]source{
		autoscalingv2.ResourceMetricSourceType: {"FailedGetResourceMetric", (*session).proposeResource},
		autoscalingv2.ContainerResourceMetricSourceType: {"FailedGetContainerResourceMetric",
			(*session).proposeContainerResource},
		autoscalingv2.PodsMetricSourceType:     {"FailedGetPodsMetric", (*session).proposePods},
		autoscalingv2.ObjectMetricSourceType:   {"FailedGetObjectMetric", (*session).proposeObject},
		autoscalingv2.ExternalMetricSourceType: {"FailedGetExternalMetric", (*session).proposeExternal},
	}
}

func (s *session) propose(ctx context.Context, spec *autoscalingv2.MetricSpec) (proposal, error) {
	source, ok := sources[spec.Type]
	if !ok {
		return proposal{}, invalidSpec{fmt.Errorf("unknown metric source type %q", spec.Type)}
	}
	return source.propose(s, ctx, spec)
}

func (s *session) proposeResource(ctx context.Context, spec *autoscalingv2.MetricSpec) (proposal, error) {
	r := spec.Resource
	p, current, err := s.resourceOf(ctx, r.Name, "", r.Target, string(r.Name)+" resource")
	if err != nil {
		return p, err
	}
	p.status = autoscalingv2.MetricStatus{Type: spec.Type, Resource: &autoscalingv2.ResourceMetricStatus{Name: r.Name,
		Current: current}}
	return p, nil
}

func (s *session) proposeContainerResource(ctx context.Context, spec *autoscalingv2.MetricSpec) (proposal, error) {
	r := spec.ContainerResource
	p, current, err := s.resourceOf(ctx, r.Name, r.Container, r.Target, string(r.Name)+" container resource")
	if err != nil {
		return p, err
	}
	p.status = autoscalingv2.MetricStatus{Type: spec.Type,
		ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{
			Name: r.Name, Container: r.Container, Current: current,
		}}
	return p, nil
}

// resourceOf computes the replica count of a resource metric of one container, or of whole pods if container is empty.
// It also returns the metric's current value. metricName is the metric's name in events.
func (s *session) resourceOf(ctx context.Context, name corev1.ResourceName, container string,
	target autoscalingv2.MetricTarget, metricName string) (proposal, autoscalingv2.MetricValueStatus, error) {
	current := autoscalingv2.MetricValueStatus{}
	fail := func(err error) (proposal, autoscalingv2.MetricValueStatus, error) {
		return proposal{}, current, fmt.Errorf("failed to get %s utilization: %w", name, err)
	}
	if target.AverageValue == nil && target.AverageUtilization == nil {
		return proposal{}, current, errors.New("invalid resource metric source: neither an average utilization " +
			"target nor an average value (usage) target was set")
	}
	pods, err := s.selectedPods()
	if err != nil {
		return fail(err)
	}
	metrics, err := s.metrics.resource(ctx, s.hpa.Namespace, s.selector, name, container)
	if err != nil {
		return fail(fmt.Errorf("unable to get metrics for resource %s: %w", name, err))
	}
	if target.AverageValue != nil {
		out, err := s.byAverage(pods, metrics, name, milli(*target.AverageValue))
		if err != nil {
			return fail(err)
		}
		current.AverageValue = quantity(out.value)
		return proposal{replicas: out.replicas, name: metricName}, current, nil
	}
	out, err := s.byUtilization(pods, metrics, name, container, *target.AverageUtilization)
	if err != nil {
		return fail(err)
	}
	current.AverageUtilization, current.AverageValue = &out.utilization, quantity(out.value)
	return proposal{replicas: out.replicas, name: metricName + " utilization (percentage of request)"}, current, nil
}

func (s *session) proposePods(ctx context.Context, spec *autoscalingv2.MetricSpec) (proposal, error) {
	m := spec.Pods
	if m.Target.AverageValue == nil {
		return proposal{}, invalidSpec{errors.New("invalid pods metric source: no average value target was set")}
	}
	pods, err := s.selectedPods()
	if err != nil {
		return proposal{}, err
	}
	metrics, err := s.metrics.pods(ctx, s.hpa.Namespace, s.selector, m.Metric)
	if err != nil {
		return proposal{}, fmt.Errorf("unable to get metric %s: %w", m.Metric.Name, err)
	}
	out, err := s.byAverage(pods, metrics, "", milli(*m.Target.AverageValue))
	if err != nil {
		return proposal{}, err
	}
	return proposal{out.replicas, "pods metric " + m.Metric.Name,
		autoscalingv2.MetricStatus{Type: spec.Type, Pods: &autoscalingv2.PodsMetricStatus{
			Metric: m.Metric, Current: autoscalingv2.MetricValueStatus{AverageValue: quantity(out.value)},
		}}}, nil
}

func (s *session) proposeObject(ctx context.Context, spec *autoscalingv2.MetricSpec) (proposal, error) {
	o := spec.Object
	value, err := s.objectValue(ctx, o)
	if err != nil {
		return proposal{}, fmt.Errorf("unable to get metric %s: %s on %s %s/%w", o.Metric.Name, o.DescribedObject.Kind,
			s.hpa.Namespace, o.DescribedObject.Name, err)
	}
	out, current, err := s.compare("object", value, o.Target)
	if err != nil {
		return proposal{}, err
	}
	metricName := fmt.Sprintf("%s metric %s", o.DescribedObject.Kind, o.Metric.Name)
	if o.Target.Type == autoscalingv2.AverageValueMetricType {
		metricName = fmt.Sprintf("external metric %s(%v)", o.Metric.Name, o.Metric.Selector)
	}
	return proposal{out.replicas, metricName, autoscalingv2.MetricStatus{
		Type: spec.Type, Object: &autoscalingv2.ObjectMetricStatus{Metric: o.Metric, DescribedObject: o.DescribedObject,
			Current: current},
	}}, nil
}

func (s *session) objectValue(ctx context.Context, o *autoscalingv2.ObjectMetricSource) (int64, error) {
	resource, err := s.resourceName(o.DescribedObject)
	if err != nil {
		return 0, err
	}
	return s.metrics.object(ctx, s.hpa.Namespace, resource, o.DescribedObject.Name, o.Metric)
}

// resourceName returns the resource of the object's kind, with its group, as the custom metrics API expects it.
func (s *session) resourceName(ref autoscalingv2.CrossVersionObjectReference) (string, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return "", err
	}
	mapper, _ := s.scales()
	mapping, err := mapper.RESTMapping(schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if err != nil {
		return "", err
	}
	return mapping.Resource.GroupResource().String(), nil
}

func (s *session) proposeExternal(ctx context.Context, spec *autoscalingv2.MetricSpec) (proposal, error) {
	e := spec.External
	value, err := s.metrics.external(ctx, s.hpa.Namespace, e.Metric)
	if err != nil {
		return proposal{}, fmt.Errorf("unable to get external metric %s/%s/%v: %w", s.hpa.Namespace, e.Metric.Name,
			e.Metric.Selector, err)
	}
	out, current, err := s.compare("external", value, e.Target)
	if err != nil {
		return proposal{}, err
	}
	return proposal{out.replicas, fmt.Sprintf("external metric %s(%v)", e.Metric.Name, e.Metric.Selector),
		autoscalingv2.MetricStatus{Type: spec.Type, External: &autoscalingv2.ExternalMetricStatus{Metric: e.Metric,
			Current: current}}}, nil
}

// compare computes the replica count of a metric with a single value: an object metric or an external one.
func (s *session) compare(source string, value int64, target autoscalingv2.MetricTarget) (
	out outcome, current autoscalingv2.MetricValueStatus, err error) {
	switch {
	case target.Type == autoscalingv2.ValueMetricType && target.Value != nil:
		out, err = s.byValue(value, milli(*target.Value))
		current.Value = quantity(out.value)
	case target.Type == autoscalingv2.AverageValueMetricType && target.AverageValue != nil:
		out = s.byShare(value, milli(*target.AverageValue))
		current.AverageValue = quantity(out.value)
	default:
		err = invalidSpec{fmt.Errorf("invalid %s metric source: neither a value target nor an average value "+
			"target was set", source)}
	}
	return out, current, err
}

func quantity(thousandths int64) *resource.Quantity {
	return resource.NewMilliQuantity(thousandths, resource.DecimalSI)
}
