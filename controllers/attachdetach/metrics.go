package attachdetach

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// addMetrics adds kube-controller-manager's metrics of attached volumes. They are counted in the caches.
func (a *attacher) addMetrics(m *controller.Metrics) {
	a.forced = m.Counter("attach_detach_controller_attachdetach_controller_forced_detaches",
		"Number of times the A/D Controller performed a forced detach", "reason")
	m.State("storage_count_attachable_volumes_in_use", "Measure number of volumes in use",
		[]string{"node", "volume_plugin"}, func(add func(float64, ...string)) {
			a.eachUse(func(pod *corev1.Pod, v *corev1.PersistentVolume) {
				add(1, pod.Spec.NodeName, controller.VolumePlugin(v))
			})
		})
	m.State("attachdetach_controller_total_volumes", "Number of volumes in A/D Controller",
		[]string{"plugin_name", "state"}, func(add func(float64, ...string)) {
			desired := map[string]bool{}
			a.eachUse(func(pod *corev1.Pod, v *corev1.PersistentVolume) {
				if name := attachmentName(v, pod.Spec.NodeName); !desired[name] && !controller.PodEnded(pod) {
					desired[name] = true
					add(1, controller.VolumePlugin(v), "desired_state_of_world")
				}
			})
			attached, _ := a.attachments.List(labels.Everything()) // a lister returns no errors
			for _, v := range attached {
				if v.Status.Attached {
					add(1, "kubernetes.io/csi:"+v.Spec.Attacher, "actual_state_of_world")
				}
			}
		})
}

// eachUse calls f for each attachable volume of each pod on a Node.
func (a *attacher) eachUse(f func(*corev1.Pod, *corev1.PersistentVolume)) {
	for _, obj := range a.pods.GetStore().List() {
		pod, ok := obj.(*corev1.Pod)
		if !ok || pod.Spec.NodeName == "" {
			continue
		}
		for i := range pod.Spec.Volumes {
			if v := a.volumeOf(pod, &pod.Spec.Volumes[i]); v != nil && a.attachable(v) {
				f(pod, v)
			}
		}
	}
}
