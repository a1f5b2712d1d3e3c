package etcd

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// EmbeddedMetrics returns the metrics of an etcd server in this process, such as etcd_disk_wal_fsync_duration_seconds.
// etcd registers them with Prometheus' default registry; the other metrics of that registry are left out, and those
// that storage has for every etcd.
func EmbeddedMetrics() prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		all, err := prometheus.DefaultGatherer.Gather()
		return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool {
			name := f.GetName()
			return !strings.HasPrefix(name, "etcd_") && !strings.HasPrefix(name, "grpc_server_") ||
				slices.Contains(shared, name)
		}), err
	})
}

// shared are the metrics of etcd that storage.Store's collector has with the same names.
var shared = []string{"etcd_mvcc_db_total_size_in_use_in_bytes", "etcd_server_quota_backend_bytes",
	"etcd_server_alarms"}
