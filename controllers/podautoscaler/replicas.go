package podautoscaler

import (
	"errors"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// tolerance is how far the ratio of a metric to its target may be from 1 before the scale changes.
type tolerance struct{ down, up float64 }

func (s *session) tolerance() tolerance {
	t := tolerance{s.settings.Tolerance, s.settings.Tolerance}
	if b := s.hpa.Spec.Behavior; b != nil {
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
	}
	return t
}

// holds reports whether the ratio is within the tolerance.
func (t tolerance) holds(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// outcome is the result of one metric: a replica count, and the metric's value for the status.
type outcome struct {
	replicas    int32
	value       int64 // in thousandths: per pod, or of the whole metric
	utilization int32 // in percent of the requests
}

// usage computes the ratio of a metric of pods to its target. A pod without a metric is assumed to use ifMissing when
// scaling down, and zero when scaling up.
type usage struct {
	ratio     func(podMetrics) (float64, error)
	ifMissing func(pod string) int64
}

var errNoPodMetrics = errors.New("did not receive metrics for targeted pods (pods might be unready)")

// perPod returns the replica count that brings the average of the pods on target. It first counts only the pods
// with a metric. Then it assumes for the other pods the value that makes the change smaller; if the change disappears
// or reverses, the scale stays.
func (s *session) perPod(pods []*corev1.Pod, metrics podMetrics, resource corev1.ResourceName,
	u usage) (int32, error) {
	current, tolerance := s.target.Spec.Replicas, s.tolerance()
	p := s.group(pods, metrics, resource)
	if len(metrics) == 0 {
		return 0, errNoPodMetrics
	}
	first, err := u.ratio(metrics)
	if err != nil {
		return 0, err
	}
	growsPastUnready := len(p.unready) > 0 && first > 1
	if !growsPastUnready && len(p.missing) == 0 {
		if tolerance.holds(first) {
			return current, nil
		}
		return ceil(first * float64(p.ready)), nil
	}
	for _, name := range p.missing {
		switch {
		case first < 1:
			metrics[name] = podMetric{value: u.ifMissing(name)}
		case first > 1:
			metrics[name] = podMetric{}
		}
	}
	if growsPastUnready {
		for _, name := range p.unready {
			metrics[name] = podMetric{}
		}
	}
	second, err := u.ratio(metrics)
	if err != nil {
		return 0, err
	}
	replicas := ceil(second * float64(len(metrics)))
	if tolerance.holds(second) || first < 1 && second > 1 || first > 1 && second < 1 ||
		second < 1 && replicas > current || second > 1 && replicas < current {
		return current, nil
	}
	return replicas, nil
}

// ceil rounds up to a replica count.
func ceil(x float64) int32 { return nearest(math.Ceil(x)) }

// nearest converts x, an integer, to the nearest int32; NaN becomes 0.
func nearest(x float64) int32 {
	if math.IsNaN(x) {
		return 0
	}
	return int32(max(math.MinInt32, min(x, math.MaxInt32)))
}

// plus adds amounts and returns the largest int64 if the sum overflows: the API accepts amounts of any size.
func plus(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// milli returns a quantity in thousandths, limited to the range of int64. Quantity's own conversion returns arbitrary
// numbers, even 0, for quantities out of range.
func milli(q resource.Quantity) int64 {
	const limit = math.MaxInt64 / 1000
	switch units := q.AsApproximateFloat64(); {
	case units >= limit:
		return math.MaxInt64
	case units <= -limit:
		return -math.MaxInt64
	}
	return q.MilliValue()
}

// percent returns used in percent of requested, without overflow: a pod may use a million times its request.
func percent(used, requested int64) int32 {
	if used > math.MaxInt64/100 {
		return nearest(math.Trunc(float64(used) / float64(requested) * 100))
	}
	return nearest(float64(used * 100 / requested))
}

// byUtilization computes the outcome for a target in percent of the pods' requests.
func (s *session) byUtilization(pods []*corev1.Pod, metrics podMetrics, resource corev1.ResourceName, container string,
	target int32) (outcome, error) {
	requested, err := requests(pods, container, resource)
	if err != nil {
		return outcome{}, err
	}
	var out outcome
	measured := false
	ratio := func(metrics podMetrics) (float64, error) {
		var used, total int64
		for name, m := range metrics {
			if r, ok := requested[name]; ok { // otherwise the pod is newer than the list of pods
				used, total = plus(used, m.value), plus(total, r)
			}
		}
		if total == 0 {
			return 0, errors.New("no metrics returned matched known pods")
		}
		utilization := percent(used, total)
		if !measured { // the status shows the first, measured value, without assumptions for missing pods
			measured, out.utilization, out.value = true, utilization, used/int64(len(metrics))
		}
		return float64(utilization) / float64(target), nil
	}
	out.replicas, err = s.perPod(pods, metrics, resource, usage{ratio, func(pod string) int64 {
		return int64(min(float64(requested[pod])*float64(max(100, target))/100, math.MaxInt64/2))
	}})
	return out, err
}

// byAverage computes the outcome for an absolute target per pod, in thousandths.
func (s *session) byAverage(pods []*corev1.Pod, metrics podMetrics, resource corev1.ResourceName,
	target int64) (outcome, error) {
	var out outcome
	measured := false
	ratio := func(metrics podMetrics) (float64, error) {
		var sum int64
		for _, m := range metrics {
			sum = plus(sum, m.value)
		}
		average := sum / int64(len(metrics))
		if !measured {
			measured, out.value = true, average
		}
		return float64(average) / float64(target), nil
	}
	var err error
	out.replicas, err = s.perPod(pods, metrics, resource, usage{ratio, func(string) int64 { return target }})
	return out, err
}

// byValue computes the outcome for a target for the whole metric. The replica count is the number of ready pods, times
// the ratio of the metric to its target.
func (s *session) byValue(value, target int64) (outcome, error) {
	ratio := float64(value) / float64(target)
	if s.target.Spec.Replicas == 0 { // no pod is ready
		return outcome{replicas: ceil(ratio), value: value}, nil
	}
	if s.tolerance().holds(ratio) {
		return outcome{replicas: s.target.Spec.Replicas, value: value}, nil
	}
	ready, err := s.readyPods()
	if err != nil {
		return outcome{}, fmt.Errorf("unable to calculate ready pods: %w", err)
	}
	return outcome{replicas: ceil(ratio * float64(ready)), value: value}, nil
}

// byShare computes the outcome for a target for each pod's share of the metric. The existing pods share the metric. If
// their share is on target, the count of the spec stays, even if it is lower: a rollout's surge pods do not become
// permanent.
func (s *session) byShare(value, target int64) outcome {
	out := outcome{replicas: s.target.Spec.Replicas, value: value}
	sharing := float64(s.target.Status.Replicas)
	if !s.tolerance().holds(float64(value) / (float64(target) * sharing)) {
		out.replicas = ceil(float64(value) / float64(target))
	}
	if sharing > 0 {
		out.value = int64(math.Ceil(float64(value) / sharing))
	}
	return out
}
