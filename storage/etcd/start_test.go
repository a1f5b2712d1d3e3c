package etcd

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coxswain-dev/coxswain/storage"
)

// typical is a document of the size that pods have, 2 kB.
var typical = fmt.Appendf(nil, `{"metadata":{"annotations":{"a":%q}}}`, strings.Repeat("x", 2000))

// BenchmarkStart starts an embedded etcd that contains objects, and a store on it. The cost of both should be
// proportional to the number of objects. Memory is the heap in use after the start.
func BenchmarkStart(b *testing.B) {
	for _, n := range []int{1000, 10000, 50000} {
		b.Run(fmt.Sprintf("objects=%d", n), func(b *testing.B) {
			dir := b.TempDir()
			fillDir(b, dir, n)
			var etcdTook int64
			for b.Loop() {
				began := b.Elapsed()
				backend, err := StartEmbedded(b.Context(), EmbeddedOptions{Dir: dir})
				if err != nil {
					b.Fatal(err)
				}
				etcdTook += int64(b.Elapsed() - began)
				s, err := storage.Open(b.Context(), backend, storage.Options{})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				b.ReportMetric(float64(m.HeapInuse)/float64(n), "heap-B/object")
				if err := errors.Join(s.Close(), backend.Close()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(etcdTook)/float64(b.N)/1e6, "etcd-ms")
		})
	}
}

// fillDir creates pods one by one, as clients do, in an etcd that is stopped then.
func fillDir(b *testing.B, dir string, n int) {
	b.Helper()
	backend, err := StartEmbedded(b.Context(), EmbeddedOptions{Dir: dir, Unsafe: true})
	if err != nil {
		b.Fatal(err)
	}
	s, err := storage.Open(b.Context(), backend, storage.Options{})
	if err != nil {
		b.Fatal(err)
	}
	var made atomic.Int64
	var writing sync.WaitGroup
	failures := make(chan error, 16)
	for range cap(failures) {
		writing.Go(func() {
			for i := made.Add(1); i <= int64(n); i = made.Add(1) {
				key := podKey("default", fmt.Sprintf("p%d", i))
				if _, err := s.Commit(context.Background(),
					storage.Write{Op: storage.Create, Key: key, Value: typical}); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	writing.Wait()
	close(failures)
	if err := errors.Join(<-failures, s.Close(), backend.Close()); err != nil {
		b.Fatal(err)
	}
}
