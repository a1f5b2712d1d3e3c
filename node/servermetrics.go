package node

import (
	"context"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"

	"github.com/coxswain-dev/coxswain/node/runtime"
)

// kubeletMetrics serves the metrics of one Node, and those of the agent and its process for all Nodes.
func (e *endpoint) kubeletMetrics(w http.ResponseWriter, r *http.Request, n *hostedNode) {
	e.serveMetrics(w, r, nodeMetrics{e.agent, n}, e.Metrics...)
}

// cadvisorMetrics serves the usage of containers, in the form of the kubelet's cAdvisor.
func (e *endpoint) cadvisorMetrics(w http.ResponseWriter, r *http.Request, n *hostedNode) {
	ctx, cancel := context.WithTimeout(r.Context(), usageTimeout)
	defer cancel()
	e.serveMetrics(w, r, containerMetrics{ctx, e.agent, n})
}

func (e *endpoint) serveMetrics(
	w http.ResponseWriter, r *http.Request, collector prometheus.Collector, more ...prometheus.Gatherer,
) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	all := append(prometheus.Gatherers{registry}, more...)
	promhttp.HandlerFor(all, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// nodeMetrics collects its metrics when they are requested.
type nodeMetrics struct {
	*agent
	node *hostedNode
}

var (
	nodeNameDesc = kubeletDesc("node_name", "The node's name. The count is always 1.", "node")
	runningPods  = kubeletDesc("running_pods", "Number of pods that have a running pod sandbox")
	runningDesc  = kubeletDesc("running_containers", "Number of containers currently running", "container_state")
	activePods   = kubeletDesc("active_pods", "The number of pods the kubelet considers active and which are being "+
		"considered when admitting new pods. static is true if the pod is not from the apiserver.", "static")
)

func kubeletDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kubelet_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (nodeMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodeNameDesc, runningPods, runningDesc, activePods} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m nodeMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	pods, static, own := 0, 0, 0
	containers := map[string]int{"running": 0, "exited": 0}
	for _, pod := range m.podsOf(m.node) {
		if pod.Status.StartTime == nil || phaseEnded(pod.Status.Phase) {
			continue
		}
		if m.isStatic(pod) {
			static++
		} else {
			own++
		}
		running := containers["running"]
		for _, c := range runtime.Containers(pod) {
			switch status := m.containerStatus(pod, c.Name); {
			case status == nil:
			case status.State.Running != nil:
				containers["running"]++
			case status.State.Terminated != nil:
				containers["exited"]++
			}
		}
		if containers["running"] > running {
			pods++
		}
	}
	gauge(nodeNameDesc, 1, m.node.name)
	gauge(runningPods, pods)
	gauge(activePods, static, "true")
	gauge(activePods, own, "false")
	for state, n := range containers {
		gauge(runningDesc, n, state)
	}
}

// containerMetrics collects the usage of containers from the runtime, for one request. ctx is the request's.
type containerMetrics struct {
	ctx context.Context
	*agent
	node *hostedNode
}

var (
	byContainer = []string{"container", "id", "image", "name", "namespace", "pod"}
	byMachine   = []string{"boot_id", "machine_id", "system_uuid"}

	cpuUsage = prometheus.NewDesc("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.",
		append([]string{"cpu"}, byContainer...), nil)
	memoryUsage = containerDesc("memory_usage_bytes",
		"Current memory usage in bytes, including all memory regardless of when it was accessed")
	memorySet     = containerDesc("memory_working_set_bytes", "Current working set in bytes.")
	startTime     = containerDesc("start_time_seconds", "Start time of the container since unix epoch in seconds.")
	lastSeen      = containerDesc("last_seen", "Last time a container was seen by the exporter")
	memoryLimit   = containerDesc("spec_memory_limit_bytes", "Memory limit for the container.")
	cpuQuota      = containerDesc("spec_cpu_quota", "CPU quota of the container.")
	cpuPeriod     = containerDesc("spec_cpu_period", "CPU period of the container.")
	machineCores  = prometheus.NewDesc("machine_cpu_cores", "Number of logical CPU cores.", byMachine, nil)
	machineMemory = prometheus.NewDesc("machine_memory_bytes", "Amount of memory installed on the machine.",
		byMachine, nil)
)

func containerDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("container_"+name, help, byContainer, nil)
}

// Describe implements prometheus.Collector.
func (containerMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		cpuUsage, memoryUsage, memorySet, startTime, lastSeen, memoryLimit, cpuQuota, cpuPeriod, machineCores,
		machineMemory,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. As in cAdvisor, which sees cgroups, a pod is a container without a name.
func (m containerMetrics) Collect(ch chan<- prometheus.Metric) {
	id := m.node.machineID
	m.send(ch, machineCores, prometheus.GaugeValue, m.Capacity.Cpu().AsApproximateFloat64(), id, id, id)
	m.send(ch, machineMemory, prometheus.GaugeValue, m.Capacity.Memory().AsApproximateFloat64(), id, id, id)
	for _, pod := range m.podsOf(m.node) {
		if pod.Status.StartTime == nil || phaseEnded(pod.Status.Phase) {
			continue
		}
		stats, _ := m.podStats(m.ctx, pod, m.Clock.Now())
		cgroup := "/kubepods/pod" + string(pod.UID)
		m.usage(ch, stats.CPU, stats.Memory, "", cgroup, "", "", pod.Namespace, pod.Name)
		for i := range stats.Containers {
			m.container(ch, pod, &stats.Containers[i], cgroup)
		}
	}
}

func (m containerMetrics) container(ch chan<- prometheus.Metric, pod *corev1.Pod, s *containerStats, cgroup string) {
	status := m.containerStatus(pod, s.Name)
	if status == nil {
		return // the container has ended meanwhile
	}
	_, name, _ := strings.Cut(status.ContainerID, "://")
	labels := []string{s.Name, cgroup + "/" + name, status.Image, name, pod.Namespace, pod.Name}
	m.usage(ch, s.CPU, s.Memory, labels...)
	m.send(ch, startTime, prometheus.GaugeValue, float64(s.StartTime.Unix()), labels...)
	m.send(ch, lastSeen, prometheus.GaugeValue, float64(s.CPU.Time.Unix()), labels...)
	for _, c := range runtime.Containers(pod) {
		if c.Name != s.Name {
			continue
		}
		m.send(ch, memoryLimit, prometheus.GaugeValue, c.Resources.Limits.Memory().AsApproximateFloat64(), labels...)
		if limit := c.Resources.Limits.Cpu(); !limit.IsZero() {
			m.send(ch, cpuPeriod, prometheus.GaugeValue, cgroupPeriod, labels...)
			m.send(ch, cpuQuota, prometheus.GaugeValue, limit.AsApproximateFloat64()*cgroupPeriod, labels...)
		}
	}
}

// cgroupPeriod is the kubelet's CPU period in microseconds.
const cgroupPeriod = 100_000

func (m containerMetrics) usage(ch chan<- prometheus.Metric, cpu cpuStats, memory memoryStats, labels ...string) {
	seconds := float64(cpu.UsageCoreNanoSeconds) / 1e9
	m.send(ch, cpuUsage, prometheus.CounterValue, seconds, append([]string{"total"}, labels...)...)
	m.send(ch, memoryUsage, prometheus.GaugeValue, float64(memory.UsageBytes), labels...)
	m.send(ch, memorySet, prometheus.GaugeValue, float64(memory.WorkingSetBytes), labels...)
}

// send sends a metric unless a label is not valid UTF-8: users choose the names of images.
func (containerMetrics) send(
	ch chan<- prometheus.Metric, desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string,
) {
	if metric, err := prometheus.NewConstMetric(desc, kind, value, labels...); err == nil {
		ch <- metric
	}
}
