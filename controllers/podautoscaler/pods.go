package podautoscaler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// grouped holds the pods of a target, grouped by how their metrics count.
type grouped struct {
	ready   int      // the number of pods whose metric counts
	unready []string // pods that are pending or starting: their metric, if any, does not count
	missing []string // pods without a metric
}

// group groups the pods, and removes the metrics of unready, failed and terminating pods from metrics. The CPU usage of
// a pod that is starting, or was never ready, does not count.
func (s *session) group(pods []*corev1.Pod, metrics podMetrics, resource corev1.ResourceName) grouped {
	var out grouped
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

// starting reports whether a pod's CPU metric is from its start.
func (s *session) starting(pod *corev1.Pod, metric podMetric) bool {
	ready := controller.PodCondition(pod, corev1.PodReady)
	if ready == nil || pod.Status.StartTime == nil {
		return true
	}
	start, unready := pod.Status.StartTime.Time, ready.Status == corev1.ConditionFalse
	if start.Add(s.settings.CPUInitializationPeriod).After(s.now) {
		// During the initialization period a metric counts only if its whole window is after the pod became ready.
		return unready || metric.timestamp.Before(ready.LastTransitionTime.Add(metric.window))
	}
	// Later it counts, unless the pod has never been ready: then the condition is about as old as the pod.
	return unready && start.Add(s.settings.InitialReadinessDelay).After(ready.LastTransitionTime.Time)
}

// selectedPods returns the pods that the target's selector matches; no pods are an error.
func (s *session) selectedPods() ([]*corev1.Pod, error) {
	pods, err := s.pods.Pods(s.hpa.Namespace).List(s.selector)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("no pods returned by selector while calculating replica count")
	}
	return pods, nil
}

// readyPods returns the number of running pods whose condition Ready is true.
func (s *session) readyPods() (int, error) {
	pods, err := s.selectedPods()
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

// requests returns the request of each pod for a resource, in thousandths: of one container, or of the whole pod if
// container is empty.
func requests(pods []*corev1.Pod, container string, resource corev1.ResourceName) (map[string]int64, error) {
	all := make(map[string]int64, len(pods))
	for _, pod := range pods {
		if pod.Spec.Resources != nil && container == "" {
			if q, ok := pod.Spec.Resources.Requests[resource]; ok { // a pod-level request
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

// longRunning returns the containers that run as long as the pod: its containers and its sidecars.
func longRunning(spec *corev1.PodSpec) []corev1.Container {
	all := append([]corev1.Container(nil), spec.Containers...)
	for _, c := range spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

// ambiguous returns the keys of other autoscalers whose targets select pods of this target. Such autoscalers would undo
// each other's changes.
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
