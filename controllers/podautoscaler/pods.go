package podautoscaler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// sorted are the pods of a target by how their metrics count.
type sorted struct {
	ready   int      // have a metric that counts
	unready []string // their metric is that of their start, if there is one
	missing []string // have none
}

// sort takes from metrics those of pods that are not ready and of pods that have ended. Of what a pod uses of
// the CPU while it starts, and before it was ever ready, nothing is concluded.
func (s *session) sort(pods []*corev1.Pod, metrics podMetrics, resource corev1.ResourceName) sorted {
	var out sorted
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed {
			delete(metrics, pod.Name)
			continue
		}
		metric, found := metrics[pod.Name]
		switch {
		case pod.Status.Phase == corev1.PodPending:
			out.unready = append(out.unready, pod.Name)
			delete(metrics, pod.Name)
		case !found:
			out.missing = append(out.missing, pod.Name)
		case resource == corev1.ResourceCPU && s.starting(pod, metric):
			out.unready = append(out.unready, pod.Name)
			delete(metrics, pod.Name)
		default:
			out.ready++
		}
	}
	return out
}

// starting reports whether a pod's CPU is that of its start.
func (s *session) starting(pod *corev1.Pod, metric podMetric) bool {
	ready := controller.PodCondition(pod, corev1.PodReady)
	if ready == nil || pod.Status.StartTime == nil {
		return true
	}
	start, not := pod.Status.StartTime.Time, ready.Status == corev1.ConditionFalse
	if start.Add(s.settings.CPUInitializationPeriod).After(s.now) {
		// In the time of starting what counts is a whole window after it became ready.
		return not || metric.at.Before(ready.LastTransitionTime.Add(metric.window))
	}
	// It has never been ready: its condition is as old as it is.
	return not && start.Add(s.settings.InitialReadinessDelay).After(ready.LastTransitionTime.Time)
}

// targets are the pods that the target's selector chooses.
func (s *session) targets() ([]*corev1.Pod, error) {
	pods, err := s.pods.Pods(s.hpa.Namespace).List(s.selector)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("no pods returned by selector while calculating replica count")
	}
	return pods, nil
}

// readyPods counts the pods whose condition Ready is true.
func (s *session) readyPods() (int, error) {
	pods, err := s.targets()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, pod := range pods {
		if pod.Status.Phase == corev1.PodRunning && controller.PodReady(pod) {
			n++
		}
	}
	return n, nil
}

// requests are what pods request of a resource, of one container or of all, in thousandths.
func requests(pods []*corev1.Pod, container string, resource corev1.ResourceName) (map[string]int64, error) {
	all := make(map[string]int64, len(pods))
	for _, pod := range pods {
		if pod.Spec.Resources != nil && container == "" {
			if q, ok := pod.Spec.Resources.Requests[resource]; ok { // of the pod as a whole
				all[pod.Name] = milli(q)
				continue
			}
		}
		var sum int64
		for _, c := range longRunning(&pod.Spec) {
			if container != "" && c.Name != container {
				continue
			}
			q, ok := c.Resources.Requests[resource]
			if !ok {
				return nil, fmt.Errorf("missing request for %s in container %s of Pod %s", resource, c.Name, pod.Name)
			}
			sum = plus(sum, milli(q))
		}
		all[pod.Name] = sum
	}
	return all, nil
}

// longRunning are the containers that run as long as the pod does: sidecars are among them.
func longRunning(spec *corev1.PodSpec) []corev1.Container {
	all := append([]corev1.Container(nil), spec.Containers...)
	for _, c := range spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

// ambiguous finds other autoscalers whose targets have pods of this one. Each would undo what the other does.
func (s *session) ambiguous() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.selectors[s.key] = s.selector
	pods, err := s.pods.Pods(s.hpa.Namespace).List(s.selector)
	if err != nil {
		return nil, err
	}
	hpas, err := s.hpas.HorizontalPodAutoscalers(s.hpa.Namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var others []string
	for _, hpa := range hpas {
		key := controller.KeyOf(hpa)
		other := s.selectors[key]
		if key == s.key || other == nil {
			continue
		}
		for _, pod := range pods {
			if other.Matches(labels.Set(pod.Labels)) {
				others = append(others, key)
				break
			}
		}
	}
	return others, nil
}
