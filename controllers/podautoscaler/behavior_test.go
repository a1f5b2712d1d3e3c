package podautoscaler

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
)

func policy(kind autoscalingv2.HPAScalingPolicyType, value, seconds int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: kind, Value: value, PeriodSeconds: seconds}
}

// step is one sync after a delay: the metrics recommend a count, and the scale becomes want.
type step struct {
	delay             time.Duration
	recommended, want int32
	reason            string // of the condition ScalingLimited
}

// play runs the steps one after another, beginning with a scale of first.
func play(t *testing.T, first int32, behavior *autoscalingv2.HorizontalPodAutoscalerBehavior, steps ...step) *session {
	t.Helper()
	s := newSession(first, nil)
	s.hpa.Spec.Behavior = behavior
	s.memory.recommended(first, s.now)
	current := first
	for i, step := range steps {
		s.now = s.now.Add(step.delay)
		got := s.normalize(current, step.recommended, 1)
		require.Equal(t, step.want, got, "step %d", i)
		if got != current {
			s.memory.changed(current, got, s.now)
		}
		current = got
		if step.reason != "" {
			require.Equal(t, step.reason, s.conditionOf(autoscalingv2.ScalingLimited).Reason, "step %d", i)
		}
	}
	return s
}

func (s *session) conditionOf(
	t autoscalingv2.HorizontalPodAutoscalerConditionType) autoscalingv2.HorizontalPodAutoscalerCondition {
	for _, c := range s.hpa.Status.Conditions {
		if c.Type == t {
			return c
		}
	}
	return autoscalingv2.HorizontalPodAutoscalerCondition{}
}

func TestNormalize_DoublesAndScalesDownAfterFiveMinutesByDefault(t *testing.T) {
	s := play(t, 1, nil,
		step{15 * time.Second, 50, 4, "ScaleUpLimit"},
		step{15 * time.Second, 50, 8, "ScaleUpLimit"},
		step{15 * time.Second, 50, 16, "ScaleUpLimit"},
		step{15 * time.Second, 20, 32, "ScaleUpLimit"}, // 50 were recommended 15 seconds ago
		step{4 * time.Minute, 20, 50, "DesiredWithinRange"},
		step{2 * time.Minute, 2, 20, "DesiredWithinRange"},
		step{5 * time.Minute, 2, 2, "DesiredWithinRange"},
		step{4 * time.Minute, 0, 2, ""},
		step{6 * time.Minute, 0, 1, "TooFewReplicas"},
		step{15 * time.Second, 500, 4, "ScaleUpLimit"},
	)
	require.Equal(t, corev1.ConditionTrue, s.conditionOf(autoscalingv2.ScalingLimited).Status)
	play(t, 80, nil, step{time.Second, 500, 100, "TooManyReplicas"})
}

func TestNormalize_PoliciesCountFromTheStartOfTheirPeriods(t *testing.T) {
	behavior := &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp: &autoscalingv2.HPAScalingRules{Policies: []autoscalingv2.HPAScalingPolicy{
			policy(autoscalingv2.PodsScalingPolicy, 4, 60), policy(autoscalingv2.PercentScalingPolicy, 10, 60),
		}},
		ScaleDown: &autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: new(int32(0)),
			Policies: []autoscalingv2.HPAScalingPolicy{policy(autoscalingv2.PercentScalingPolicy, 50,
				60)},
		},
	}
	play(t, 10, behavior,
		step{time.Second, 30, 14, "ScaleUpLimit"},
		step{15 * time.Second, 30, 14, "ScaleUpLimit"}, // the four pods of this period are used up
		step{time.Minute, 30, 18, "ScaleUpLimit"},
		step{time.Minute, 20, 20, "DesiredWithinRange"},
		step{time.Minute, 1, 10, "ScaleDownLimit"},
		step{15 * time.Second, 1, 10, "ScaleDownLimit"},
		step{time.Minute, 1, 5, "ScaleDownLimit"},
		step{time.Minute, 0, 2, "ScaleDownLimit"},
		step{time.Minute, 0, 1, "TooFewReplicas"},
	)
	behavior.ScaleUp.SelectPolicy = new(autoscalingv2.MinChangePolicySelect)
	play(t, 10, behavior, step{time.Second, 30, 11, "ScaleUpLimit"})
	behavior.ScaleUp.SelectPolicy = new(autoscalingv2.DisabledPolicySelect)
	behavior.ScaleDown.SelectPolicy = new(autoscalingv2.DisabledPolicySelect)
	play(t, 10, behavior, step{time.Second, 30, 10, "ScaleUpLimit"}, step{time.Second, 3, 10, "ScaleDownLimit"})
}

func TestNormalize_WindowsKeepTheScaleStable(t *testing.T) {
	behavior := &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(60))},
		ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(120))},
	}
	s := play(t, 5, behavior, step{30 * time.Second, 9, 5, ""})
	require.Equal(t, "ScaleUpStabilized", s.conditionOf(autoscalingv2.AbleToScale).Reason)
	s = play(t, 5, behavior,
		step{30 * time.Second, 9, 5, ""},
		step{40 * time.Second, 9, 9, ""},
		step{30 * time.Second, 3, 9, ""},
		step{45 * time.Second, 4, 9, ""}, // nine were recommended less than two minutes ago
	)
	require.Equal(t, "ScaleDownStabilized", s.conditionOf(autoscalingv2.AbleToScale).Reason)
	s = play(t, 9, behavior, step{121 * time.Second, 4, 4, ""})
	require.Equal(t, "ReadyForNewScale", s.conditionOf(autoscalingv2.AbleToScale).Reason)
}

func TestNumbers_DoNotOverflow(t *testing.T) {
	const largest = math.MaxInt32
	desired, reason, _ := simpleBounds(largest-10, largest, 1, largest)
	require.EqualValues(t, largest, desired)
	require.Equal(t, "DesiredWithinRange", reason)

	now := time.Unix(1_800_000_000, 0)
	s := newSession(largest, nil)
	s.now = now
	for range 3 {
		s.memory.changed(1, largest, now)
	}
	up := rules{policies: []autoscalingv2.HPAScalingPolicy{policy(autoscalingv2.PodsScalingPolicy, 4, 60)}}
	require.Negative(t, s.upLimit(largest, up), "it was scaled up three times beyond the policy")
	up.policies[0] = policy(autoscalingv2.PercentScalingPolicy, largest, 0)
	require.EqualValues(t, largest, s.upLimit(largest, up))
	require.EqualValues(t, math.MinInt32, s.downLimit(largest, up))

	require.EqualValues(t, 50, percent(1, 2))
	require.EqualValues(t, largest, percent(math.MaxInt64, 1), "a pod that requests a byte")
	require.EqualValues(t, 100, percent(math.MaxInt64, math.MaxInt64))
	require.EqualValues(t, math.MaxInt64, plus(math.MaxInt64-1, 2))
	require.EqualValues(t, largest, ceil(math.Inf(1)))
	require.Zero(t, ceil(math.NaN()))
}
