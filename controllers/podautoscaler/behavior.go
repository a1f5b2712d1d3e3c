package podautoscaler

import (
	"math"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// recommendation is what the metrics once asked for.
type recommendation struct {
	replicas int32
	at       time.Time
}

// change is by how many replicas the scale once was changed.
type change struct {
	replicas int32
	at       time.Time
}

// longest is how far back a window or a policy may reach (an hour and half an hour, by validation).
const longest = time.Hour

func (m *past) recommended(replicas int32, now time.Time) {
	m.recommendations = append(slices.DeleteFunc(m.recommendations, func(r recommendation) bool {
		return now.Sub(r.at) > longest
	}),
		recommendation{replicas, now})
}

func (m *past) changed(from, to int32, now time.Time) {
	old := func(c change) bool { return now.Sub(c.at) > longest }
	m.ups, m.downs = slices.DeleteFunc(m.ups, old), slices.DeleteFunc(m.downs, old)
	if to > from {
		m.ups = append(m.ups, change{to - from, now})
	} else {
		m.downs = append(m.downs, change{from - to, now})
	}
}

func within(changes []change, period time.Duration, now time.Time) float64 {
	sum := 0.
	for _, c := range changes {
		if now.Sub(c.at) < period {
			sum += float64(c.replicas)
		}
	}
	return sum
}

// rules are how fast the scale may follow in one direction.
type rules struct {
	window   time.Duration
	selector autoscalingv2.ScalingPolicySelect
	policies []autoscalingv2.HPAScalingPolicy
}

// rulesOf are those of the spec, with Kubernetes' defaults for what it omits. Without any behavior the scale may
// double in each period, or come to four.
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

// normalize turns what the metrics ask for into what may be done now.
func (s *session) normalize(current, wanted, least int32) int32 {
	up, down := s.rulesOf()
	stable := s.stabilize(current, wanted, up, down)
	var desired int32
	var reason, message string
	if s.hpa.Spec.Behavior == nil {
		desired, reason, message = simpleBounds(current, stable, least, s.hpa.Spec.MaxReplicas)
	} else {
		desired, reason, message = s.ruledBounds(current, stable, least, up, down)
	}
	limited := corev1.ConditionTrue
	if desired == stable {
		limited = corev1.ConditionFalse
	}
	s.condition(autoscalingv2.ScalingLimited, limited, reason, "%s", message)
	return desired
}

// stabilize takes the least that was asked for in the window of growing, and the most in that of shrinking, so that a
// metric which swings does not make the scale swing.
func (s *session) stabilize(current, wanted int32, up, down rules) int32 {
	least, most := wanted, wanted
	for _, r := range s.memory.recommendations {
		if s.now.Sub(r.at) < up.window {
			least = min(least, r.replicas)
		}
		if s.now.Sub(r.at) < down.window {
			most = max(most, r.replicas)
		}
	}
	s.memory.recommended(wanted, s.now)
	stable := min(max(current, least), most)
	if s.hpa.Spec.Behavior == nil {
		stable = most
	}
	switch {
	case stable == wanted:
		s.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "ReadyForNewScale",
			"recommended size matches current size")
	case s.hpa.Spec.Behavior != nil && wanted >= current:
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

// simpleBounds are those of an autoscaler without behavior.
func simpleBounds(current, wanted, least, most int32) (desired int32, reason, message string) {
	allowed, reason, message := most, "TooManyReplicas", tooMany
	if limit := controller.Int32(max(2*int(current), 4)); most > limit {
		allowed, reason, message = limit, "ScaleUpLimit", tooFast
	}
	switch {
	case wanted < least:
		return least, "TooFewReplicas", tooFew
	case wanted > allowed:
		return allowed, reason, message
	}
	return wanted, "DesiredWithinRange", inRange
}

// ruledBounds are those of an autoscaler with behavior.
func (s *session) ruledBounds(current, wanted, least int32, up, down rules) (desired int32, reason, message string) {
	switch most := s.hpa.Spec.MaxReplicas; {
	case wanted > current:
		limit := max(s.upLimit(current, up), current)
		switch {
		case limit < most && wanted > limit:
			return limit, "ScaleUpLimit", tooFast
		case wanted > most:
			return most, "TooManyReplicas", tooMany
		}
	case wanted < current:
		limit := min(s.downLimit(current, down), current)
		switch {
		case limit > least && wanted < limit:
			return limit, "ScaleDownLimit", tooFastOff
		case wanted < least:
			return least, "TooFewReplicas", tooFew
		}
	}
	return wanted, "DesiredWithinRange", inRange
}

// upLimit is how far the policies let the scale grow now.
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

// downLimit is how far the policies let it shrink.
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

// limits are what each policy allows, counted from the scale at the start of its period.
func (s *session) limits(current int32, r rules, of func(start, value float64, percent bool) float64) []int32 {
	limits := make([]int32, 0, len(r.policies))
	for _, p := range r.policies {
		period := time.Duration(p.PeriodSeconds) * time.Second
		start := float64(current) - within(s.memory.ups, period, s.now) + within(s.memory.downs, period, s.now)
		limit := of(start, float64(p.Value), p.Type == autoscalingv2.PercentScalingPolicy)
		limits = append(limits, nearest(limit))
	}
	return limits
}
