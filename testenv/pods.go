package testenv

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/simulated"
)

// PodScript describes the behavior of a simulated pod's containers: when they start, become ready, end and fail,
// and the text that they log.
type PodScript = simulated.Script

// WithPodBehavior makes a function decide the behavior of each pod's containers. The script contains the settings
// of the pod's annotations (docs/node.md). Without any, the containers are ready at once and run until they are
// stopped, those of Jobs too: unlike with coxswain up, a pod completes only by its script or its annotations, so that
// a test decides when a Job is complete.
//
//	testenv.WithPodBehavior(func(pod *corev1.Pod, script *testenv.PodScript) {
//		if pod.Labels["app"] == "migration" {
//			script.RunFor, script.Failures = new(time.Minute), new(int64(2))
//		}
//	})
//
// The function is called often, and concurrently for several pods. It must always return the same for the same pod,
// and must not change the pod.
func WithPodBehavior(behavior func(pod *corev1.Pod, script *PodScript)) Option {
	return func(o *options) { o.pods = behavior }
}
