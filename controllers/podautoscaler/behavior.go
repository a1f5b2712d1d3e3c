package podautoscaler

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// recommendation is a replica count that the metrics asked for in an earlier sync.
type recommendation struct {
	replicas int32
	time     time.Time
}

// change is the size of an earlier change of the scale, in replicas.
type change struct {
	replicas int32
	time     time.Time
}

// maxAge is how long recommendations and changes are kept. Validation limits stabilization windows to an hour and the
// periods of policies to half an hour.
const maxAge = time.Hour

// recommended records a recommendation and drops recommendations older than maxAge.
func (m *past) recommended(replicas int32, now time.Time) {
	m.recommendations = append(slices.DeleteFunc(m.recommendations, func(r recommendation) bool {
		return now.Sub(r.time) > maxAge
	}),
		recommendation{replicas, now})
}

// changed records a change of the scale and drops changes older than maxAge.
func (m *past) changed(before, after int32, now time.Time) {
	old := func(c change) bool { return now.Sub(c.time) > maxAge }
	m.ups, m.downs = slices.DeleteFunc(m.ups, old), slices.DeleteFunc(m.downs, old)
	if after > before {
		m.ups = append(m.ups, change{after - before, now})
	} else {
		m.downs = append(m.downs, change{before - after, now})
	}
}

// within returns the sum of the changes in the last period.
func within(changes []change, period time.Duration, now time.Time) float64 {
	sum := 0.
	for _, c := range changes {
		if now.Sub(c.time) < period {
			sum += float64(c.replicas)
		}
	}
	return sum
}

// rules limit how fast the scale may change in one direction.
type rules struct {
	window   time.Duration
	selector autoscalingv2.ScalingPolicySelect
	policies []autoscalingv2.HPAScalingPolicy
}

// rulesOf returns the rules of the spec, with Kubernetes' defaults for omitted fields. By default the scale may double
// or grow by four pods in each period of 15 seconds, whichever is more.
func (s *session) rulesOf() (up, down rules) {
	up = rules{selector: autoscalingv2.MaxChangePolicySelect, policies: []autoscalingv2.HPAScalingPolicy{
		{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
		{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
	}}
	down = rules{window: s.settings.DownscaleStabilization, selector: autoscalingv2.MaxChangePolicySelect,
		policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PercentScalingPolicy, Value: 100,
			PeriodSeconds: 15}}}
	if b := s.hpa.Spec.Behavior; b != nil {
		up.override(b.ScaleUp)
		down.override(b.ScaleDown)
	}
	return up, down
}

// override replaces the rules by the fields that the spec sets.
func (r *rules) override(spec *autoscalingv2.HPAScalingRules) {
	if spec == nil {
		return
	}
	if spec.StabilizationWindowSeconds != nil {
		r.window = time.Duration(*spec.StabilizationWindowSeconds) * time.Second
	}
	if spec.SelectPolicy != nil {
		r.selector = *spec.SelectPolicy
	}
	if len(spec.Policies) > 0 {
		r.policies = spec.Policies
	}
}

// normalize limits the replica count that the metrics recommend by stabilization, policies and bounds. It returns the
// count to scale to now and sets the conditions AbleToScale and ScalingLimited.
func (s *session) normalize(current, recommended, minReplicas int32) int32 {
	up, down := s.rulesOf()
	stable := s.stabilize(current, recommended, up, down)
	var desired int32
	var reason, message string
	if s.hpa.Spec.Behavior == nil {
		desired, reason, message = simpleBounds(current, stable, minReplicas, s.hpa.Spec.MaxReplicas)
	} else {
		desired, reason, message = s.ruledBounds(current, stable, minReplicas, up, down)
	}
	limited := corev1.ConditionTrue
	if desired == stable {
		limited = corev1.ConditionFalse
	}
	s.condition(autoscalingv2.ScalingLimited, limited, reason, "%s", message)
	return desired
}

// stabilize records the recommendation. It returns a count between the lowest recommendation in the window for scaling
// up and the highest in the window for scaling down, so that a fluctuating metric does not make the scale fluctuate.
func (s *session) stabilize(current, recommended int32, up, down rules) int32 {
	lowest, highest := recommended, recommended
	for _, r := range s.memory.recommendations {
		if s.now.Sub(r.time) < up.window {
			lowest = min(lowest, r.replicas)
		}
		if s.now.Sub(r.time) < down.window {
			highest = max(highest, r.replicas)
		}
	}
	s.memory.recommended(recommended, s.now)
	stable := min(max(current, lowest), highest)
	if s.hpa.Spec.Behavior == nil {
		stable = highest
	}
	switch {
	case stable == recommended:
		s.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "ReadyForNewScale",
			"recommended size matches current size")
	case s.hpa.Spec.Behavior != nil && recommended >= current:
		s.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "ScaleUpStabilized",
			"recent recommendations were lower than current one, applying the lowest recent recommendation")
	default:
		s.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "ScaleDownStabilized",
			"recent recommendations were higher than current one, applying the highest recent recommendation")
	}
	return stable
}

const (
	tooFew     = "the desired replica count is less than the minimum replica count"
	tooMany    = "the desired replica count is more than the maximum replica count"
	tooFast    = "the desired replica count is increasing faster than the maximum scale rate"
	tooFastOff = "the desired replica count is decreasing faster than the maximum scale rate"
	inRange    = "the desired count is within the acceptable range"
)

// simpleBounds applies the bounds of an autoscaler without behavior: its minimum and maximum, and at most twice the
// current count or four. reason and message are for the condition ScalingLimited.
func simpleBounds(current, recommended, minReplicas, maxReplicas int32) (desired int32, reason, message string) {
	allowed, reason, message := maxReplicas, "TooManyReplicas", tooMany
	if limit := controller.Int32(max(2*int(current), 4)); maxReplicas > limit {
		allowed, reason, message = limit, "ScaleUpLimit", tooFast
	}
	switch {
	case recommended < minReplicas:
		return minReplicas, "TooFewReplicas", tooFew
	case recommended > allowed:
		return allowed, reason, message
	}
	return recommended, "DesiredWithinRange", inRange
}

// ruledBounds applies the bounds of an autoscaler with behavior: its minimum and maximum, and the limits of its
// policies.
func (s *session) ruledBounds(current, recommended, minReplicas int32, up, down rules) (
	desired int32, reason, message string) {
	switch maxReplicas := s.hpa.Spec.MaxReplicas; {
	case recommended > current:
		limit := max(s.upLimit(current, up), current)
		switch {
		case limit < maxReplicas && recommended > limit:
			return limit, "ScaleUpLimit", tooFast
		case recommended > maxReplicas:
			return maxReplicas, "TooManyReplicas", tooMany
		}
	case recommended < current:
		limit := min(s.downLimit(current, down), current)
		switch {
		case limit > minReplicas && recommended < limit:
			return limit, "ScaleDownLimit", tooFastOff
		case recommended < minReplicas:
			return minReplicas, "TooFewReplicas", tooFew
		}
	}
	return recommended, "DesiredWithinRange", inRange
}

// upLimit returns the largest count that the policies allow now.
func (s *session) upLimit(current int32, r rules) int32 {
	limits := s.limits(current, r, func(start, value float64, percent bool) float64 {
		if percent {
			return math.Ceil(start * (1 + value/100))
		}
		return start + value
	})
	switch r.selector {
	case autoscalingv2.DisabledPolicySelect:
		return current
	case autoscalingv2.MinChangePolicySelect:
		return slices.Min(limits)
	}
	return slices.Max(limits)
}

// downLimit returns the smallest count that the policies allow now.
func (s *session) downLimit(current int32, r rules) int32 {
	limits := s.limits(current, r, func(start, value float64, percent bool) float64 {
		if percent {
			return math.Trunc(start * (1 - value/100))
		}
		return start - value
	})
	switch r.selector {
	case autoscalingv2.DisabledPolicySelect:
		return current
	case autoscalingv2.MinChangePolicySelect:
		return slices.Max(limits)
	}
	return slices.Min(limits)
}

// limits returns the limit of each policy, computed by limitOf from the scale at the start of the policy's period.
func (s *session) limits(current int32, r rules,
	limitOf func(start, value float64, percent bool) float64) []int32 {
	limits := make([]int32, 0, len(r.policies))
	for _, p := range r.policies {
		period := time.Duration(p.PeriodSeconds) * time.Second
		start := float64(current) - within(s.memory.ups, period, s.now) + within(s.memory.downs, period, s.now)
		limit := limitOf(start, float64(p.Value), p.Type == autoscalingv2.PercentScalingPolicy)
		limits = append(limits, nearest(limit))
	}
	return limits
}
