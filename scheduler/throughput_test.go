package scheduler_test

import (
	"context"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/scheduler"
	"github.com/coxswain-dev/coxswain/testenv"
)

// BenchmarkSchedulingBasic_5000Nodes_10000Pods runs the case of that name in Kubernetes' scheduler_perf: this many
// pods wait when the scheduler starts, and it ends with the last binding. The API server runs in the same process
// and is part of the CPU time.
func BenchmarkSchedulingBasic_5000Nodes_10000Pods(b *testing.B) {
	const nodes, pods = 5000, 10000
	for b.Loop() {
		b.StopTimer()
		config := testenv.Start(b, testenv.WithNodes(0), testenv.WithControllers(), testenv.WithoutScheduler())
		config.QPS = -1
		client := kubernetes.NewForConfigOrDie(config)
		createNodes(b.Context(), b, client, nodes)
		createPods(b.Context(), b, client, pods, "10m")
		registry := prometheus.NewRegistry()
		ctx, stop := context.WithCancel(b.Context())
		done := make(chan error, 1)
		before := cpuTime(b)
		b.StartTimer()
		began := b.Elapsed()
		go func() { done <- scheduler.Run(ctx, config, scheduler.Options{Metrics: registry}) }()
		awaitBound(ctx, b, client, pods)
		took := b.Elapsed() - began
		b.StopTimer()
		b.ReportMetric(pods/took.Seconds(), "pods/s")
		b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/pods, "cpu-µs/pod")
		b.ReportMetric(quantile(b, registry, "scheduler_scheduling_attempt_duration_seconds", 0.99)*1000,
			"p99-attempt-ms")
		b.ReportMetric(quantile(b, registry, "scheduler_scheduling_algorithm_duration_seconds", 0.99)*1000,
			"p99-cycle-ms")
		stop()
		require.NoError(b, <-done)
		b.StartTimer()
	}
}

func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// quantile returns the upper bound of the histogram bucket that contains the quantile.
func quantile(b *testing.B, registry *prometheus.Registry, name string, q float64) float64 {
	families, err := registry.Gather()
	require.NoError(b, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		h := f.Metric[0].GetHistogram()
		for _, bucket := range h.Bucket {
			if float64(bucket.GetCumulativeCount()) >= q*float64(h.GetSampleCount()) {
				return bucket.GetUpperBound()
			}
		}
	}
	return math.Inf(1)
}
