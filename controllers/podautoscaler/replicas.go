package podautoscaler

import (
	"errors"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// tolerance is how far from 1 the ratio of a metric to its target may be before the scale follows.
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

func (t tolerance) holds(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// The outcome of one metric: a replica count, and the metric's value as the status has it.
type outcome struct {
	replicas    int32
	value       int64 // of the metric, in thousandths: per pod, or as a whole
	utilization int32 // in percent of what is requested
}

// ofPods is how a metric of pods becomes a ratio to its target. ifMissing is what a pod without a metric is
// taken to use when that speaks against shrinking; when it speaks against growing it is nothing.
type ofPods struct {
	ratio     func(podMetrics) (float64, error)
	ifMissing func(pod string) int64
}

var errNoPodMetrics = errors.New("did not receive metrics for targeted pods (pods might be unready)")

// perPod is the count at which the pods would be at their target, on the average. First only those with a metric count;
// then, of what is not known, what would make the change smaller is assumed, and if nothing of the change is left there
// is none.
func (s *session) perPod(pods []*corev1.Pod, metrics podMetrics, resource corev1.ResourceName,
	of ofPods) (int32, error) {
	current, tolerance := s.target.Spec.Replicas, s.tolerance()
	p := s.sort(pods, metrics, resource)
	if len(metrics) == 0 {
		return 0, errNoPodMetrics
	}
	first, err := of.ratio(metrics)
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
			metrics[name] = podMetric{value: of.ifMissing(name)}
		case first > 1:
			metrics[name] = podMetric{}
		}
	}
	if growsPastUnready {
		for _, name := range p.unready {
			metrics[name] = podMetric{}
		}
	}
	second, err := of.ratio(metrics)
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

func ceil(x float64) int32 { return nearest(math.Ceil(x)) }

// nearest is x, a whole number, or the nearest that the API can write; 0 where it is no number.
func nearest(x float64) int32 {
	if math.IsNaN(x) {
		return 0
	}
	return int32(max(math.MinInt32, min(x, math.MaxInt32)))
}

// plus adds amounts, of which the API takes any, and stays at the largest where the sum would be larger.
func plus(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// milli is a quantity in thousandths, or the nearest number that there is. Quantity's own conversion returns arbitrary
// numbers for what is out of range, even 0.
func milli(q resource.Quantity) int64 {
	const most = math.MaxInt64 / 1000
	switch units := q.AsApproximateFloat64(); {
	case units >= most:
		return math.MaxInt64
	case units <= -most:
		return -math.MaxInt64
	}
	return q.MilliValue()
}

// percent is how many percent one amount is of another. A pod may use a million times what it requests.
func percent(used, of int64) int32 {
	if used > math.MaxInt64/100 {
		return nearest(math.Trunc(float64(used) / float64(of) * 100))
	}
	return nearest(float64(used * 100 / of))
}

// byUtilization is for a target in percent of what pods request.
func (s *session) byUtilization(pods []*corev1.Pod, metrics podMetrics, resource corev1.ResourceName, container string,
	target int32) (outcome, error) {
	requested, err := requests(pods, container, resource)
	if err != nil {
		return outcome{}, err
	}
	var out outcome
	told := false
	ratio := func(metrics podMetrics) (float64, error) {
		var used, of int64
		for name, m := range metrics {
			if r, ok := requested[name]; ok { // else the pod is newer than our list
				used, of = plus(used, m.value), plus(of, r)
			}
		}
		if of == 0 {
			return 0, errors.New("no metrics returned matched known pods")
		}
		utilization := percent(used, of)
		if !told { // what users see is what was measured
			told, out.utilization, out.value = true, utilization, used/int64(len(metrics))
		}
		return float64(utilization) / float64(target), nil
	}
	out.replicas, err = s.perPod(pods, metrics, resource, ofPods{ratio, func(pod string) int64 {
		return int64(min(float64(requested[pod])*float64(max(100, target))/100, math.MaxInt64/2))
	}})
	return out, err
}

// byAverage is for a target in absolute numbers per pod, in thousandths.
func (s *session) byAverage(pods []*corev1.Pod, metrics podMetrics, resource corev1.ResourceName,
	target int64) (outcome, error) {
	var out outcome
	told := false
	ratio := func(metrics podMetrics) (float64, error) {
		var sum int64
		for _, m := range metrics {
			sum = plus(sum, m.value)
		}
		average := sum / int64(len(metrics))
		if !told {
			told, out.value = true, average
		}
		return float64(average) / float64(target), nil
	}
	var err error
	out.replicas, err = s.perPod(pods, metrics, resource, ofPods{ratio, func(string) int64 { return target }})
	return out, err
}

// byValue is for a target that the metric as a whole is compared with: as many times as it is larger, as many more
// pods than are ready now.
func (s *session) byValue(value, target int64) (outcome, error) {
	ratio := float64(value) / float64(target)
	if s.target.Spec.Replicas == 0 { // nobody is ready to be counted
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

// byShare is for a target that each pod's share of the metric is compared with. The pods that there are have shares;
// if those are on target the scale stays as it was asked for, which may be less: a rollout's surge is not kept.
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
