package statefulset

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// addMetrics adds kube-controller-manager's metrics of StatefulSets. They are read from the cache.
func (c *statefulSets) addMetrics(m *controller.Metrics) {
	state := func(name, help string, value func(*appsv1.StatefulSet) int) {
		m.State("statefulset_controller_statefulset_"+name, help,
			[]string{"statefulset_namespace", "statefulset_name", "pod_management_policy"},
			func(add func(float64, ...string)) {
				all, _ := c.lister.List(labels.Everything()) // a lister returns no errors
				for _, set := range all {
					if set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType {
						add(float64(value(set)), set.Namespace, set.Name, string(set.Spec.PodManagementPolicy))
					}
				}
			})
	}
	state("max_unavailable", "Maximum number of unavailable pods allowed during StatefulSet rolling updates",
		maxUnavailable)
	state("unavailable_replicas", "Current number of unavailable pods in StatefulSet",
		func(set *appsv1.StatefulSet) int { return max(0, desired(set)-int(set.Status.AvailableReplicas)) })
}
