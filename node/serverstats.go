package node

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/node/amount"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

// The parts of the kubelet's Summary (k8s.io/kubelet/pkg/apis/stats/v1alpha1) that the agent can fill in.
type (
	statsSummary struct {
		Node nodeStats  `json:"node"`
		Pods []podStats `json:"pods"`
	}
	nodeStats struct {
		NodeName  string      `json:"nodeName"`
		StartTime metav1.Time `json:"startTime"`
		CPU       cpuStats    `json:"cpu"`
		Memory    memoryStats `json:"memory"`

		Network *networkStats `json:"network,omitempty"`
		Fs      *fsStats      `json:"fs,omitempty"`
		Runtime *runtimeStats `json:"runtime,omitempty"`
		Rlimit  *rlimitStats  `json:"rlimit,omitempty"`
	}
	podStats struct {
		PodRef     podReference     `json:"podRef"`
		StartTime  metav1.Time      `json:"startTime"`
		Containers []containerStats `json:"containers"`
		CPU        cpuStats         `json:"cpu"`
		Memory     memoryStats      `json:"memory"`

		Network          *networkStats `json:"network,omitempty"`
		EphemeralStorage *fsStats      `json:"ephemeral-storage,omitempty"`
		ProcessStats     *processStats `json:"process_stats,omitempty"`
	}
	podReference struct {
		Name      string    `json:"name"`
		Namespace string    `json:"namespace"`
		UID       types.UID `json:"uid"`
	}
	containerStats struct {
		Name      string      `json:"name"`
		StartTime metav1.Time `json:"startTime"`
		CPU       cpuStats    `json:"cpu"`
		Memory    memoryStats `json:"memory"`
		Rootfs    *fsStats    `json:"rootfs,omitempty"`
		Logs      *fsStats    `json:"logs,omitempty"`

		usage runtime.Usage
	}
	cpuStats struct {
		Time                 metav1.Time `json:"time"`
		UsageNanoCores       uint64      `json:"usageNanoCores"`
		UsageCoreNanoSeconds uint64      `json:"usageCoreNanoSeconds"`
	}
	memoryStats struct {
		Time            metav1.Time `json:"time"`
		AvailableBytes  *uint64     `json:"availableBytes,omitempty"`
		UsageBytes      uint64      `json:"usageBytes"`
		WorkingSetBytes uint64      `json:"workingSetBytes"`
	}
)

func asStats(u runtime.Usage, now time.Time) (cpuStats, memoryStats) {
	timestamp := metav1.NewTime(now)
	nano := func(n float64) uint64 { return uint64(amount.Within(n*1e9, 0, 1<<63)) }
	return cpuStats{Time: timestamp, UsageNanoCores: nano(u.CPU), UsageCoreNanoSeconds: nano(u.CPUSeconds)},
		memoryStats{Time: timestamp, UsageBytes: uint64(u.Memory), WorkingSetBytes: uint64(u.Memory)}
}

// usageTimeout limits the time that the runtime has to report the usage of all pods of a node. Pods that it has not
// reported by then count as using none.
const usageTimeout = 10 * time.Second

// summary returns the usage of a node and of its pods.
func (a *agent) summary(ctx context.Context, n *hostedNode) *statsSummary {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	now := a.Clock.Now()
	s := &statsSummary{Pods: []podStats{}}
	var all runtime.Usage
	for _, pod := range a.podsOf(n) {
		if pod.Status.StartTime == nil || phaseEnded(pod.Status.Phase) {
			continue
		}
		p, taken := a.podStats(ctx, pod, now)
		all.Add(taken)
		s.Pods = append(s.Pods, p)
	}
	if m, ok := a.runtime.(runtime.Machine); ok {
		if u, err := m.Load(now); err == nil {
			all = u
		}
	}
	s.Node = nodeStats{NodeName: n.name, StartTime: metav1.NewTime(a.started)}
	s.Node.CPU, s.Node.Memory = asStats(all, now)
	available := uint64(max(0, a.Capacity.Memory().Value()-all.Memory))
	s.Node.Memory.AvailableBytes = &available
	return s
}

func (a *agent) podStats(ctx context.Context, pod *corev1.Pod, now time.Time) (podStats, runtime.Usage) {
	s := podStats{PodRef: podReference{pod.Name, pod.Namespace, pod.UID}, StartTime: *pod.Status.StartTime}
	var all runtime.Usage
	for _, c := range runtime.Containers(pod) {
		status := a.containerStatus(pod, c.Name)
		if status == nil || status.State.Running == nil {
			continue
		}
		started := status.State.Running.StartedAt
		u, err := a.runtimeOf(pod).Usage(ctx, pod, c, started.Time, now)
		if err != nil {
			continue // the container has ended meanwhile
		}
		one := containerStats{Name: c.Name, StartTime: started, usage: u}
		one.CPU, one.Memory = asStats(u, now)
		s.Containers = append(s.Containers, one)
		all.Add(u)
	}
	s.CPU, s.Memory = asStats(all, now)
	return s, all
}

// statsSummary serves the kubelet's Summary. With only_cpu_and_memory it leaves out the other statistics, as the
// kubelet does.
func (e *endpoint) statsSummary(w http.ResponseWriter, r *http.Request, n *hostedNode) {
	s := e.summary(r.Context(), n)
	if only, err := strconv.ParseBool(r.URL.Query().Get("only_cpu_and_memory")); err != nil || !only {
		e.addDisks(r.Context(), s, n)
	}
	writeJSON(w, s)
}

// addDisks adds the statistics about disks, networks and processes.
func (a *agent) addDisks(ctx context.Context, s *statsSummary, n *hostedNode) {
	now := s.Node.CPU.Time.Time
	a.addMachine(&s.Node, n, now)
	pods := map[types.UID]*corev1.Pod{}
	for _, pod := range a.podsOf(n) {
		pods[pod.UID] = pod
	}
	for i := range s.Pods {
		if pod := pods[s.Pods[i].PodRef.UID]; pod != nil {
			a.addStorage(ctx, &s.Pods[i], pod, s.Node.Fs, now)
		}
	}
}

// resourceMetrics serves the same in Prometheus' format, for metrics-server.
// https://kubernetes.io/docs/reference/instrumentation/node-metrics/
func (e *endpoint) resourceMetrics(w http.ResponseWriter, r *http.Request, n *hostedNode) {
	s := e.summary(r.Context(), n)
	var b strings.Builder
	family := func(name, kind, help string, samples func(sample func(labels string, value float64, at metav1.Time))) {
		fmt.Fprintf(&b, "# HELP %s [STABLE] %s\n# TYPE %s %s\n", name, help, name, kind)
		samples(func(labels string, value float64, at metav1.Time) {
			fmt.Fprintf(&b, "%s%s %g %d\n", name, labels, value, at.UnixMilli())
		})
	}
	containers := func(sample func(labels string, c *containerStats)) {
		for i := range s.Pods {
			p := &s.Pods[i]
			for j := range p.Containers {
				c := &p.Containers[j]
				sample(fmt.Sprintf("{container=%q,namespace=%q,pod=%q}", c.Name, p.PodRef.Namespace, p.PodRef.Name), c)
			}
		}
	}
	pods := func(sample func(labels string, p *podStats)) {
		for i := range s.Pods {
			sample(fmt.Sprintf("{namespace=%q,pod=%q}", s.Pods[i].PodRef.Namespace, s.Pods[i].PodRef.Name), &s.Pods[i])
		}
	}
	type add = func(labels string, value float64, at metav1.Time)
	seconds := func(c cpuStats) float64 { return float64(c.UsageCoreNanoSeconds) / 1e9 }
	family("container_cpu_usage_seconds_total", "counter",
		"Cumulative cpu time consumed by the container in core-seconds", func(sample add) {
			containers(func(l string, c *containerStats) { sample(l, seconds(c.CPU), c.CPU.Time) })
		})
	family("container_memory_working_set_bytes", "gauge", "Current working set of the container in bytes",
		func(sample add) {
			containers(func(l string, c *containerStats) {
				sample(l, float64(c.Memory.WorkingSetBytes), c.Memory.Time)
			})
		})
	family("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds",
		func(sample add) {
			containers(func(l string, c *containerStats) { sample(l, float64(c.StartTime.Unix()), c.CPU.Time) })
		})
	family("node_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the node in core-seconds",
		func(sample add) {
			sample("", seconds(s.Node.CPU), s.Node.CPU.Time)
		})
	family("node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes", func(sample add) {
		sample("", float64(s.Node.Memory.WorkingSetBytes), s.Node.Memory.Time)
	})
	family("pod_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the pod in core-seconds",
		func(sample add) {
			pods(func(l string, p *podStats) { sample(l, seconds(p.CPU), p.CPU.Time) })
		})
	family("pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes", func(sample add) {
		pods(func(l string, p *podStats) { sample(l, float64(p.Memory.WorkingSetBytes), p.Memory.Time) })
	})
	family("resource_scrape_error", "gauge", "1 if there was an error while getting container metrics, 0 otherwise",
		func(sample add) {
			sample("", 0, s.Node.CPU.Time)
		})
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(b.String()))
}
