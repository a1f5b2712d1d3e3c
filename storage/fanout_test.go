package storage

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkWatchFanOut reports the processor time of one event to one of 200 watchers, the
// commit included.
func BenchmarkWatchFanOut(b *testing.B) {
	const watchers = 200
	s, pods := startPods(b, Options{})
	var group sync.WaitGroup
	from := s.Frontier()
	for range watchers {
		w, err := pods.Watch(b.Context(), WatchRequest{From: from})
		require.NoError(b, err)
		group.Go(func() {
			defer w.Close()
			for got := 0; got < b.N; {
				batch, err := w.Next(context.Background())
				if err != nil {
					b.Error(err)
					return
				}
				got += len(batch)
			}
		})
	}
	before := processorTime(b)
	b.ResetTimer()
	for i := range b.N {
		create(b, s, podKey("default", fmt.Sprintf("p%d", i)), typicalPod)
	}
	group.Wait()
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/watchers, "cpu-ns/event")
}

func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkApply applies one change while 5,000 nodes each watch their own pods.
func BenchmarkApply(b *testing.B) {
	s, pods := startPods(b, Options{})
	for i := range 5000 {
		watch(b, pods, WatchRequest{From: s.Frontier(), Scope: Scope{IndexValue: fmt.Sprintf("node-%d", i)}})
	}
	var revision int64 = 1 << 40
	b.ReportAllocs()
	for b.Loop() {
		revision++
		ch, _ := s.decode(KV{Path: "core/pods/default/p", Value: typicalPod, Revision: revision})
		pods.apply([]change{ch})
	}
}
