package testenv_test

import (
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/testenv"
)

// BenchmarkStart_APIOnly measures the start of an API server until it serves, and its stop.
func BenchmarkStart_APIOnly(b *testing.B) { startAndStop(b, testenv.APIServerOnly()) }

// BenchmarkStart_APIOnlyOnEtcd measures the same with the objects in an embedded etcd.
func BenchmarkStart_APIOnlyOnEtcd(b *testing.B) {
	startAndStop(b, testenv.APIServerOnly(), testenv.WithEtcd())
}

// BenchmarkStart_Whole measures the start of a whole control plane until its Node is Ready, and its stop.
func BenchmarkStart_Whole(b *testing.B) { startAndStop(b) }

// BenchmarkStart_UntilADeploymentIsReady measures the time from the start until a Deployment's three pods are
// ready, which takes all parts of the control plane.
func BenchmarkStart_UntilADeploymentIsReady(b *testing.B) {
	var busy time.Duration
	for n := -1; n < 0 || b.Loop(); n++ {
		before := cpuTime(b)
		env, err := testenv.NewEnvironment()
		require.NoError(b, err)
		client := kubernetes.NewForConfigOrDie(env.Config)
		_, err = client.AppsV1().Deployments("default").Create(b.Context(), deployment("web", 3),
			metav1.CreateOptions{})
		require.NoError(b, err)
		awaitReady(b, client, "web", 3)
		if n >= 0 {
			busy += cpuTime(b) - before
		}
		b.StopTimer()
		require.NoError(b, env.Stop())
		b.StartTimer()
	}
	b.ReportMetric(float64(busy.Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// startAndStop starts one control plane before it measures, so that the figures exclude the work that a process
// does once.
func startAndStop(b *testing.B, opts ...testenv.Option) {
	var stopping, busy time.Duration
	for n := -1; n < 0 || b.Loop(); n++ {
		before := cpuTime(b)
		_, stop, err := testenv.New(opts...)
		require.NoError(b, err)
		began := time.Now()
		require.NoError(b, stop())
		if n >= 0 {
			stopping += time.Since(began)
			busy += cpuTime(b) - before
		}
	}
	b.ReportMetric(float64(stopping.Microseconds())/1000/float64(b.N), "stop-ms/op")
	b.ReportMetric(float64(busy.Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

// BenchmarkStart_Fifty starts fifty control planes together.
func BenchmarkStart_Fifty(b *testing.B) {
	b.Run("APIOnly", func(b *testing.B) { startFifty(b, testenv.APIServerOnly()) })
	b.Run("Whole", func(b *testing.B) { startFifty(b) })
}

func startFifty(b *testing.B, opts ...testenv.Option) {
	var busy time.Duration
	var heap uint64
	var goroutines int
	for b.Loop() {
		liveBefore, goroutinesBefore, before := liveHeap(), runtime.NumGoroutine(), cpuTime(b)
		var stops [50]func() error
		var starting sync.WaitGroup
		for i := range stops {
			starting.Go(func() {
				var err error
				_, stops[i], err = testenv.New(opts...)
				if err != nil {
					b.Error(err)
				}
			})
		}
		starting.Wait()
		busy += cpuTime(b) - before
		goroutines += runtime.NumGoroutine() - goroutinesBefore
		b.StopTimer()
		heap += liveHeap() - liveBefore
		for _, stop := range stops {
			require.NoError(b, stop())
		}
		b.StartTimer()
	}
	b.ReportMetric(busy.Seconds()/float64(b.N), "cpu-s/op")
	b.ReportMetric(float64(goroutines)/50/float64(b.N), "goroutines/each")
	b.ReportMetric(float64(heap>>10)/50/float64(b.N), "KiB/each")
}

// cpuTime returns the CPU time of the process.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
