// Package x509metrics counts the certificates of other servers that Go refuses and that it accepted in earlier
// releases: those without a subject alternative name and those with a SHA-1 signature. They appear when a control plane
// is upgraded, and Kubernetes gives each a metric and an audit annotation of its own.
package x509metrics

import (
	"crypto/x509"
	"errors"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// fault is what is wrong with a certificate. name is that of the annotation, reason its value.
type fault struct {
	name, reason string
	is           func(err error) bool
}

var faults = [...]fault{
	{"missing-san", "relies on a legacy Common Name field instead of the SAN extension for subject validation",
		missesSAN},
	{"insecure-sha1", "uses an insecure SHA-1 signature", hasSHA1},
}

func missesSAN(err error) bool {
	var name x509.HostnameError
	return errors.As(err, &name) && strings.Contains(name.Error(), "certificate relies on legacy Common Name field")
}

func hasSHA1(err error) bool {
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		return false
	}
	_, reason, _ := strings.Cut(unknown.Error(), "cannot verify signature: insecure algorithm")
	return strings.Contains(reason, "SHA1")
}

// Counters count the refusals of one kind of client. They are a prometheus.Collector, and safe for concurrent use.
type Counters [len(faults)]prometheus.Counter

// New returns the counters of a subsystem: apiserver_<subsystem>_x509_missing_san_total and
// apiserver_<subsystem>_x509_insecure_sha1_total.
func New(subsystem string) *Counters {
	return &Counters{
		prometheus.NewCounter(prometheus.CounterOpts{Namespace: "apiserver", Subsystem: subsystem,
			Name: "x509_missing_san_total",
			Help: "Counts the number of requests to servers missing SAN extension in their serving certificate OR " +
				"the number of connection failures due to the lack of x509 certificate SAN extension missing " +
				"(either/or, based on the runtime environment)"}),
		prometheus.NewCounter(prometheus.CounterOpts{Namespace: "apiserver", Subsystem: subsystem,
			Name: "x509_insecure_sha1_total",
			Help: "Counts the number of requests to servers with insecure SHA1 signatures in their serving " +
				"certificate OR the number of connection failures due to the insecure SHA1 signatures " +
				"(either/or, based on the runtime environment)"}),
	}
}

// Count counts the error of a request, if it is such a refusal.
func (c *Counters) Count(err error) {
	for i, f := range faults {
		if f.is(err) {
			c[i].Inc()
		}
	}
}

// Annotation returns the audit annotation of a request to a host that failed with err. The key is "" if err is not
// one of the counted faults.
func Annotation(err error, host string) (key, value string) {
	for _, f := range faults {
		if host != "" && f.is(err) {
			return f.name + ".invalid-cert.kubernetes.io/" + host, f.reason
		}
	}
	return "", ""
}

// Describe implements prometheus.Collector.
func (c *Counters) Describe(ch chan<- *prometheus.Desc) {
	for _, counter := range c {
		counter.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (c *Counters) Collect(ch chan<- prometheus.Metric) {
	for _, counter := range c {
		counter.Collect(ch)
	}
}
