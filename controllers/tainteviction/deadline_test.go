package tainteviction

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDeadline_LimitsTolerationSecondsToTheRangeOfDurations(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	node := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoExecute,
		TimeAdded: new(metav1.NewTime(now))}}}}
	for seconds, want := range map[int64]time.Duration{-5: 0, 0: 0, 60: time.Minute,
		math.MaxInt64: math.MaxInt64 / time.Second * time.Second} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "k",
			Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}}}}
		end, evict := (&evictions{}).deadline(node, pod, now)
		require.True(t, evict)
		require.Equal(t, now.Add(want), end, seconds)
	}
}
