package podgc

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
	"github.com/coxswain-dev/coxswain/internal/series"
)

// maxSeries is the number of combinations of namespace and reason with a series. Clients choose namespaces.
const maxSeries = 100

// metrics have the names of kube-controller-manager's.
type metrics struct {
	deleted, failed *series.Recent[deletion, prometheus.Counter]
}

// deletion has the labels of a deletion.
type deletion struct{ namespace, reason string }

func newMetrics(m *controller.Metrics) *metrics {
	recent := func(vec func() *prometheus.CounterVec) *series.Recent[deletion, prometheus.Counter] {
		return series.NewRecent(maxSeries,
			func(d deletion) prometheus.Counter { return vec().WithLabelValues(d.namespace, d.reason) },
			func(d deletion) { vec().DeleteLabelValues(d.namespace, d.reason) })
	}
	return &metrics{
		deleted: recent(m.Counter("pod_gc_collector_force_delete_pods_total",
			"Number of pods that are being forcefully deleted since the Pod GC Controller started.",
			"namespace", "reason")),
		failed: recent(m.Counter("pod_gc_collector_force_delete_pod_errors_total",
			"Number of errors encountered when forcefully deleting the pods since the Pod GC Controller started.",
			"namespace", "reason")),
	}
}

// count counts an attempt to delete a pod, and returns the attempt's error.
func (m *metrics) count(pod *corev1.Pod, reason string, err error) error {
	m.deleted.Of(deletion{pod.Namespace, reason}).Inc()
	if err != nil {
		m.failed.Of(deletion{pod.Namespace, reason}).Inc()
	}
	return err
}
