package podautoscaler

import (
	"fmt"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// condition sets one of the autoscaler's conditions.
func (s *session) condition(t autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus, reason,
	format string, args ...any) {
	c := autoscalingv2.HorizontalPodAutoscalerCondition{
		Type: t, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...),
		LastTransitionTime: metav1.NewTime(s.now),
	}
	for i := range s.hpa.Status.Conditions {
		if old := &s.hpa.Status.Conditions[i]; old.Type == t {
			if old.Status == status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			*old = c
			return
		}
	}
	s.hpa.Status.Conditions = append(s.hpa.Status.Conditions, c)
}
