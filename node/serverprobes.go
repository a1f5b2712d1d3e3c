package node

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/coxswain-dev/coxswain/node/probe"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// Probed is implemented by containers that are probed.
type Probed interface {
	// ProbeResults returns how often the container's probes have had each outcome.
	ProbeResults() map[probe.Result]uint64
}

// probeMetrics serves the outcomes of probes, as the kubelet does.
func (e *endpoint) probeMetrics(w http.ResponseWriter, r *http.Request, n *hostedNode) {
	e.serveMetrics(w, r, probeResults{e.agent, n})
}

// probeResults collects its metrics when they are requested.
type probeResults struct {
	*agent
	node *hostedNode
}

var probeTotal = prometheus.NewDesc("prober_probe_total", "[BETA] Cumulative number of a liveness, readiness or "+
	"startup probe for a container by result.",
	[]string{"container", "namespace", "pod", "pod_uid", "probe_type", "result"}, nil)

// Describe implements prometheus.Collector.
func (probeResults) Describe(ch chan<- *prometheus.Desc) { ch <- probeTotal }

// Collect implements prometheus.Collector.
func (p probeResults) Collect(ch chan<- prometheus.Metric) {
	for _, pod := range p.podsOf(p.node) {
		for _, c := range runtime.Containers(pod) {
			running, _ := p.running(pod, c.Name) // nil if it does not run
			probed, ok := running.(Probed)
			if !ok {
				continue
			}
			for r, times := range probed.ProbeResults() {
				outcome := map[bool]string{true: "successful", false: "failed"}[r.Succeeded]
				ch <- prometheus.MustNewConstMetric(probeTotal, prometheus.CounterValue, float64(times), c.Name,
					pod.Namespace, pod.Name, string(pod.UID), string(r.Kind), outcome)
			}
		}
	}
}
