package testenv

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/simulated"
)

// PodScript is what the containers of a simulated pod do: when they start, are ready, end and fail, and what they log.
type PodScript = simulated.Script

// WithPodBehavior has a function decide what the containers of each pod do. The script comes as the pod's annotations
// have it (docs/node.md); without any, the containers are ready at once and run until they are stopped.
//
//	testenv.WithPodBehavior(func(pod *corev1.Pod, script *testenv.PodScript) {
//		if pod.Labels["app"] == "migration" {
//			script.RunFor, script.Failures = new(time.Minute), new(int64(2))
//		}
//	})
//
// The function is called often, for several pods at once. It always answers alike for the same pod, which it must not
// change.
func WithPodBehavior(behavior func(pod *corev1.Pod, script *PodScript)) Option {
	return func(o *options) { o.pods = behavior }
}
