package authn

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coxswain-dev/coxswain/apiserver/configfile"
)

// jwtMetrics have the names of kube-apiserver's. Hashes of URLs and documents identify issuers and key sets.
type jwtMetrics struct {
	latency *prometheus.HistogramVec
	fetched *prometheus.GaugeVec
	keySet  *prometheus.GaugeVec
}

func newJWTMetrics() *jwtMetrics {
	const prefix, issuer, server = "apiserver_authentication_jwt_authenticator_", "jwt_issuer_hash", "apiserver_id_hash"
	return &jwtMetrics{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "latency_seconds",
			Help: "Latency of jwt authentication operations in seconds. This is the time spent authenticating a " +
				"token for cache miss only (i.e. when the token is not found in the cache).",
			Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}}, []string{"result", issuer}),
		fetched: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "jwks_fetch_last_timestamp_seconds",
			Help: "Timestamp of the last successful or failed JWKS fetch split by result, api server identity and " +
				"jwt issuer for the JWT authenticator."}, []string{"result", issuer, server}),
		keySet: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "jwks_fetch_last_key_set_info",
			Help: "Information about the last JWKS fetched by the JWT authenticator with hash as label, split by api " +
				"server identity and jwt issuer."}, []string{issuer, server, "hash"}),
	}
}

func resultLabel(err error) string {
	if err != nil {
		return "failure"
	}
	return "success"
}

// authenticated records the duration and result of an issuer's token authentication.
func (m *jwtMetrics) authenticated(issuer string, took time.Duration, err error) {
	m.latency.WithLabelValues(resultLabel(err), issuer).Observe(took.Seconds())
}

// fetchedKeys records a fetch of an issuer's keys. hash is that of their document.
func (m *jwtMetrics) fetchedKeys(issuer, hash string, err error) {
	server := configfile.ServerHash()
	m.fetched.WithLabelValues(resultLabel(err), issuer, server).SetToCurrentTime()
	if err == nil {
		m.forget(issuer)
		m.keySet.WithLabelValues(issuer, server, hash).Set(1)
	}
}

// forget removes the key set of an issuer that was removed or has another key set.
func (m *jwtMetrics) forget(issuer string) {
	m.keySet.DeletePartialMatch(prometheus.Labels{"jwt_issuer_hash": issuer})
}

func (m *jwtMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.latency, m.fetched, m.keySet}
}
