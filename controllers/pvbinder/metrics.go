package pvbinder

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// addMetrics adds the metrics of volumes and claims, with kube-controller-manager's names. They are counted in the
// caches.
func (b *binder) addMetrics(m *controller.Metrics) {
	b.retroactive = m.Counter("retroactive_storageclass_total",
		"Total number of retroactive StorageClass assignments to persistent volume claim")
	b.retroactiveErrors = m.Counter("retroactive_storageclass_errors_total",
		"Total number of failed retroactive StorageClass assignments to persistent volume claim")
	m.State("pv_collector_total_pv_count", "Gauge measuring total number of persistent volumes",
		[]string{"plugin_name", "volume_mode"}, func(add func(float64, ...string)) {
			for _, v := range b.all() {
				mode := ptr.Deref(v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
				add(1, controller.VolumePlugin(v), string(mode))
			}
		})
	for _, state := range []struct {
		name  string
		bound bool
	}{{"bound", true}, {"unbound", false}} {
		m.State("pv_collector_"+state.name+"_pv_count",
			"Gauge measuring number of persistent volume currently "+state.name, []string{"storage_class"},
			func(add func(float64, ...string)) {
				for _, v := range b.all() {
					if (v.Status.Phase == corev1.VolumeBound) == state.bound {
						add(1, v.Spec.StorageClassName)
					}
				}
			})
		m.State("pv_collector_"+state.name+"_pvc_count",
			"Gauge measuring number of persistent volume claim currently "+state.name,
			[]string{"namespace", "storage_class", "volume_attributes_class"}, func(add func(float64, ...string)) {
				claims, _ := b.claims.List(labels.Everything()) // a lister returns no errors
				for _, c := range claims {
					if (c.Status.Phase == corev1.ClaimBound) == state.bound {
						add(1, c.Namespace, ptr.Deref(c.Spec.StorageClassName, ""),
							ptr.Deref(c.Spec.VolumeAttributesClassName, ""))
					}
				}
			})
	}
}
