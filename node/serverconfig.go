package node

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/node/probe"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// configuration is the part of the kubelet's KubeletConfiguration (kubelet.config.k8s.io/v1beta1) that the agent has.
type configuration struct {
	Port                            int32               `json:"port"`
	Address                         string              `json:"address,omitempty"`
	StaticPodPath                   string              `json:"staticPodPath,omitempty"`
	ServerTLSBootstrap              bool                `json:"serverTLSBootstrap"`
	RegisterNode                    bool                `json:"registerNode"`
	ClusterDomain                   string              `json:"clusterDomain,omitempty"`
	ClusterDNS                      []string            `json:"clusterDNS,omitempty"`
	NodeStatusUpdateFrequency       metav1.Duration     `json:"nodeStatusUpdateFrequency"`
	NodeStatusReportFrequency       metav1.Duration     `json:"nodeStatusReportFrequency"`
	NodeLeaseDurationSeconds        int32               `json:"nodeLeaseDurationSeconds"`
	MaxPods                         int64               `json:"maxPods"`
	PodPidsLimit                    int64               `json:"podPidsLimit"`
	EvictionHard                    map[string]string   `json:"evictionHard,omitempty"`
	EvictionSoft                    map[string]string   `json:"evictionSoft,omitempty"`
	EvictionSoftGracePeriod         map[string]string   `json:"evictionSoftGracePeriod,omitempty"`
	EvictionMinimumReclaim          map[string]string   `json:"evictionMinimumReclaim,omitempty"`
	EvictionMaxPodGracePeriod       int64               `json:"evictionMaxPodGracePeriod"`
	EvictionPressureTransition      metav1.Duration     `json:"evictionPressureTransitionPeriod"`
	AllowedUnsafeSysctls            []string            `json:"allowedUnsafeSysctls,omitempty"`
	Reserved                        corev1.ResourceList `json:"systemReserved,omitempty"`
	ShutdownGracePeriod             metav1.Duration     `json:"shutdownGracePeriod"`
	ShutdownGracePeriodCriticalPods metav1.Duration     `json:"shutdownGracePeriodCriticalPods"`
}

// configz serves the agent's configuration, as the kubelet does.
func (e *endpoint) configz(w http.ResponseWriter, _ *http.Request, _ *hostedNode) {
	span := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	pids := e.MaxPodPIDs
	if pids == 0 {
		pids = -1
	}
	writeJSON(w, map[string]configuration{"kubeletconfig": {
		Port: e.port, Address: e.ListenAddress, StaticPodPath: e.StaticPodPath, ServerTLSBootstrap: e.ServerTLSBootstrap,
		RegisterNode: true, ClusterDomain: e.ClusterDomain, ClusterDNS: e.ClusterDNS,
		NodeStatusUpdateFrequency: span(e.HeartbeatEvery), NodeStatusReportFrequency: span(e.StatusEvery),
		NodeLeaseDurationSeconds: int32((leaseDurations * e.HeartbeatEvery).Seconds()),
		MaxPods:                  int64(e.MaxPods), PodPidsLimit: pids,
		EvictionHard: byName(e.Eviction.Hard, "<"), EvictionSoft: byName(e.Eviction.Soft, "<"),
		EvictionSoftGracePeriod:    byName(e.Eviction.SoftGracePeriod, "="),
		EvictionMinimumReclaim:     byName(e.Eviction.MinimumReclaim, "="),
		EvictionMaxPodGracePeriod:  int64(e.Eviction.MaxPodGracePeriod.Seconds()),
		EvictionPressureTransition: span(e.Eviction.PressureTransitionPeriod),
		AllowedUnsafeSysctls:       e.AllowedUnsafeSysctls, Reserved: e.Reserved,
		ShutdownGracePeriod:             span(e.ShutdownGracePeriod),
		ShutdownGracePeriodCriticalPods: span(e.ShutdownGracePeriodCriticalPods),
	}})
}

// byName returns the entries of a flag, such as memory.available<100Mi, by their names.
func byName(entries []string, separator string) map[string]string {
	all := map[string]string{}
	for _, entry := range entries {
		if name, value, ok := strings.Cut(entry, separator); ok {
			all[name] = value
		}
	}
	return all
}

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

var probeTotal = prometheus.NewDesc("prober_probe_total", "[BETA] Cumulative number of a liveness, readiness or startup "+
	"probe for a container by result.", []string{"container", "namespace", "pod", "pod_uid", "probe_type", "result"}, nil)

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
