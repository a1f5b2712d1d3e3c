package dns

import (
	"errors"
	"strconv"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// metrics have CoreDNS's names and labels, for its dashboards. Record types without a label of their own count as
// "other".
type metrics struct {
	clock clock.PassiveClock

	requests      *prometheus.CounterVec
	responses     *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	requestSizes  *prometheus.HistogramVec
	responseSizes *prometheus.HistogramVec

	cacheEntries *prometheus.GaugeVec
	cacheHits    *prometheus.CounterVec
	cacheMisses  prometheus.Counter

	forwarded *prometheus.CounterVec
	answered  *prometheus.HistogramVec
	rejected  prometheus.Counter
}

func newMetrics(c clock.PassiveClock) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	sizes := []float64{0, 100, 200, 300, 400, 511, 1023, 2047, 4095, 8291, 16e3, 32e3, 48e3, 64e3}
	times := prometheus.ExponentialBuckets(0.00025, 2, 16)
	return &metrics{
		clock: c,
		requests: counter("coredns_dns_requests_total", "Counter of DNS requests made per zone, protocol and family.",
			"zone", "proto", "family", "type"),
		responses: counter("coredns_dns_responses_total", "Counter of response status codes.", "zone", "rcode"),
		duration: histogram("coredns_dns_request_duration_seconds",
			"Histogram of the time (in seconds) each request took per zone.", times, "zone"),
		requestSizes: histogram("coredns_dns_request_size_bytes",
			"Size of the EDNS0 UDP buffer in bytes (64K for TCP).",
			sizes, "proto"),
		responseSizes: histogram("coredns_dns_response_size_bytes", "Size of the returned response in bytes.",
			sizes, "proto"),
		cacheEntries: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "coredns_cache_entries",
			Help: "The number of elements in the cache."}, []string{"type"}),
		cacheHits: counter("coredns_cache_hits_total", "The count of cache hits.", "type"),
		cacheMisses: prometheus.NewCounter(prometheus.CounterOpts{Name: "coredns_cache_misses_total",
			Help: "The count of cache misses."}),
		forwarded: counter("coredns_forward_requests_total", "Counter of requests made per upstream.", "to"),
		answered: histogram("coredns_proxy_request_duration_seconds",
			"Histogram of the time each request took.", times, "proxy_name", "to", "rcode"),
		rejected: prometheus.NewCounter(prometheus.CounterOpts{Name: "coredns_forward_max_concurrent_rejects_total",
			Help: "Counter of the number of queries rejected because the concurrent queries were at maximum."}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.responses, m.duration, m.requestSizes, m.responseSizes,
		m.cacheEntries, m.cacheHits, m.cacheMisses, m.forwarded, m.answered, m.rejected}
}

func (m *metrics) register(r prometheus.Registerer) error {
	var errs []error
	for _, c := range m.collectors() {
		errs = append(errs, r.Register(c))
	}
	return errors.Join(errs...)
}

func (m *metrics) unregister(r prometheus.Registerer) {
	for _, c := range m.collectors() {
		r.Unregister(c)
	}
}

// commonTypes are the record types that have a label of their own.
var commonTypes = map[uint16]string{
	dns.TypeA: "A", dns.TypeAAAA: "AAAA", dns.TypeANY: "ANY", dns.TypeCNAME: "CNAME", dns.TypeDNSKEY: "DNSKEY",
	dns.TypeDS: "DS", dns.TypeHTTPS: "HTTPS", dns.TypeMX: "MX", dns.TypeNS: "NS", dns.TypeNSEC: "NSEC",
	dns.TypeNSEC3: "NSEC3", dns.TypePTR: "PTR", dns.TypeRRSIG: "RRSIG", dns.TypeSOA: "SOA", dns.TypeSRV: "SRV",
	dns.TypeTXT: "TXT", dns.TypeAXFR: "AXFR", dns.TypeIXFR: "IXFR",
}

func (q *request) proto() string {
	if q.tcp {
		return "tcp"
	}
	return "udp"
}

func (m *metrics) request(q *request) {
	m.requestSizes.WithLabelValues(q.proto()).Observe(float64(q.msg.Len()))
}

func (m *metrics) response(q *request, zone string, rcode, size int) {
	family := "1"
	if q.client.Is6() && !q.client.Is4In6() {
		family = "2"
	}
	qtype, ok := commonTypes[q.qtype]
	if !ok {
		qtype = "other"
	}
	m.requests.WithLabelValues(zone, q.proto(), family, qtype).Inc()
	m.responses.WithLabelValues(zone, rcodeLabel(rcode)).Inc()
	m.responseSizes.WithLabelValues(q.proto()).Observe(float64(size))
	m.duration.WithLabelValues(zone).Observe(m.clock.Since(q.start).Seconds())
}

func rcodeLabel(rcode int) string {
	if name := dns.RcodeToString[rcode]; name != "" {
		return name
	}
	return strconv.Itoa(rcode)
}
