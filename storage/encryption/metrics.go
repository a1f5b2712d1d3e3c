package encryption

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"

	"github.com/coxswain-dev/coxswain/internal/series"
)

// The directions of a transformation, in metrics.
const (
	toStorage   = "to_storage"
	fromStorage = "from_storage"
)

// metrics has metrics with kube-apiserver's names.
// https://kubernetes.io/docs/reference/instrumentation/metrics/
type metrics struct {
	operations *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	reloads    *prometheus.CounterVec
	reloaded   *prometheus.GaugeVec
	config     *prometheus.GaugeVec
	kms        *kmsMetrics
	server     string // the hash of its identity
}

// kmsMetrics has the metrics of plugins.
type kmsMetrics struct {
	cacheMisses prometheus.Counter
	invalidKeys *prometheus.CounterVec
	calls       *prometheus.HistogramVec
	uses        *series.Recent[keyUse, keyUses]
	statuses    *series.Recent[keyUse, prometheus.Gauge]
}

// keyUse is a use of a plugin's key. way is a direction, or "" for a status.
type keyUse struct{ way, plugin, keyID string }

type keyUses struct {
	count prometheus.Counter
	last  prometheus.Gauge
}

// maxKeyIDs limits the number of plugins' keys in metrics: plugins choose the IDs, and stored documents may contain
// many.
const maxKeyIDs = 32

// vectors creates and registers metric vectors.
type vectors struct{ prometheus.Registerer }

func (r vectors) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_" + name, Help: help}, labels)
	r.MustRegister(c)
	return c
}

func (r vectors) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "apiserver_" + name, Help: help}, labels)
	r.MustRegister(g)
	return g
}

func (r vectors) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "apiserver_" + name, Help: help, Buckets: buckets},
		labels)
	r.MustRegister(h)
	return h
}

func newMetrics(r vectors, server string) *metrics {
	server = hashOf(server)
	return &metrics{
		server: server,
		operations: r.counter("storage_transformation_operations_total", "Total number of transformations.",
			"transformation_type", "transformer_prefix", "status"),
		duration: r.histogram("storage_transformation_duration_seconds",
			"Latencies in seconds of value transformation operations.", prometheus.ExponentialBuckets(5e-6, 2, 25),
			"transformation_type", "transformer_prefix"),
		reloads: r.counter("encryption_config_controller_automatic_reloads_total",
			"Total number of reload successes and failures of encryption configuration split by apiserver identity.",
			"status", "apiserver_id_hash"),
		reloaded: r.gauge("encryption_config_controller_automatic_reload_last_timestamp_seconds",
			"Timestamp of the last successful or failed automatic reload of encryption configuration split by "+
				"apiserver identity.", "status", "apiserver_id_hash"),
		config: r.gauge("encryption_config_controller_last_config_info",
			"Information about the last applied encryption configuration with hash as label, split by apiserver "+
				"identity.", "apiserver_id_hash", "hash"),
		kms: newKMSMetrics(r, server),
	}
}

func newKMSMetrics(r vectors, server string) *kmsMetrics {
	keyIDs := r.counter("envelope_encryption_key_id_hash_total",
		"Number of times a keyID is used split by transformation type, provider, and apiserver identity.",
		"transformation_type", "provider_name", "key_id_hash", "apiserver_id_hash")
	used := r.gauge("envelope_encryption_key_id_hash_last_timestamp_seconds",
		"The last time in seconds when a keyID was used.",
		"transformation_type", "provider_name", "key_id_hash", "apiserver_id_hash")
	reported := r.gauge("envelope_encryption_key_id_hash_status_last_timestamp_seconds",
		"The last time in seconds when a keyID was returned by the Status RPC call.",
		"provider_name", "key_id_hash", "apiserver_id_hash")
	return &kmsMetrics{
		cacheMisses: r.counter("storage_envelope_transformation_cache_misses_total",
			"Total number of cache misses while accessing key decryption key(KEK).").WithLabelValues(),
		invalidKeys: r.counter("envelope_encryption_invalid_key_id_from_status_total",
			"Number of times an invalid keyID is returned by the Status RPC call split by error.",
			"provider_name", "error"),
		calls: r.histogram("envelope_encryption_kms_operations_latency_seconds",
			"KMS operation duration with gRPC error code status total.", prometheus.ExponentialBuckets(1e-4, 2, 19),
			"provider_name", "method_name", "grpc_status_code"),
		uses: series.NewRecent(maxKeyIDs, func(k keyUse) keyUses {
			labels := []string{k.way, k.plugin, hashOf(k.keyID), server}
			return keyUses{keyIDs.WithLabelValues(labels...), used.WithLabelValues(labels...)}
		}, func(k keyUse) {
			labels := []string{k.way, k.plugin, hashOf(k.keyID), server}
			keyIDs.DeleteLabelValues(labels...)
			used.DeleteLabelValues(labels...)
		}),
		statuses: series.NewRecent(maxKeyIDs, func(k keyUse) prometheus.Gauge {
			return reported.WithLabelValues(k.plugin, hashOf(k.keyID), server)
		}, func(k keyUse) { reported.DeleteLabelValues(k.plugin, hashOf(k.keyID), server) }),
	}
}

func (m *kmsMetrics) used(way, plugin, keyID string) {
	use := m.uses.Of(keyUse{way, plugin, keyID})
	use.count.Inc()
	use.last.SetToCurrentTime()
}

func (m *kmsMetrics) status(plugin, keyID string) {
	m.statuses.Of(keyUse{plugin: plugin, keyID: keyID}).SetToCurrentTime()
}

func (m *kmsMetrics) invalidKeyID(plugin, keyID string) {
	fault := "too_long"
	if keyID == "" {
		fault = "empty"
	}
	m.invalidKeys.WithLabelValues(plugin, fault).Inc()
}

func (m *kmsMetrics) call(plugin, method string, took time.Duration, err error) {
	m.calls.WithLabelValues(plugin, "/v2.KeyManagementService/"+method, statusOf(err)).Observe(took.Seconds())
}

// meter counts the transformations behind one prefix.
type meter struct {
	in, out direction
}

type direction struct {
	ok      prometheus.Counter
	seconds prometheus.Observer
	failed  func(code string) prometheus.Counter
}

func (m *metrics) meter(prefix string) meter {
	newDirection := func(way string) direction {
		return direction{
			ok:      m.operations.WithLabelValues(way, prefix, "OK"),
			seconds: m.duration.WithLabelValues(way, prefix),
			failed: func(code string) prometheus.Counter {
				return m.operations.WithLabelValues(way, prefix, code)
			},
		}
	}
	return meter{in: newDirection(toStorage), out: newDirection(fromStorage)}
}

func (d *direction) observe(began time.Time, err error) {
	if err != nil {
		d.failed(statusOf(err)).Inc()
		return
	}
	d.ok.Inc()
	d.seconds.Observe(time.Since(began).Seconds())
}

// statusOf returns the gRPC code of an error, or Kubernetes' word for an error without a code.
func statusOf(err error) string {
	if err == nil {
		return "OK"
	}
	var coded interface{ GRPCStatus() *status.Status }
	if errors.As(err, &coded) {
		return coded.GRPCStatus().Code().String()
	}
	return "unknown-non-grpc"
}

// reload counts a reload of the file. If it succeeded, hash is the hash of the active file.
func (m *metrics) reload(hash string, ok bool) {
	outcome := "failure"
	if ok {
		outcome = "success"
		m.applied(hash)
	}
	m.reloads.WithLabelValues(outcome, m.server).Inc()
	m.reloaded.WithLabelValues(outcome, m.server).SetToCurrentTime()
}

func (m *metrics) applied(hash string) {
	m.config.Reset()
	m.config.WithLabelValues(m.server, hash).Set(1)
}
