package dns

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// BenchmarkIndex computes 10,000 Services with five endpoints each, every other one headless. index-MB is the memory of
// the index, and objects-MB the memory of its objects in the informers.
func BenchmarkIndex(b *testing.B) {
	var memory [3]runtime.MemStats
	measure := func(i int) {
		b.StopTimer()
		defer b.StartTimer()
		runtime.GC()
		runtime.ReadMemStats(&memory[i])
	}
	for b.Loop() {
		measure(0)
		var services []*corev1.Service
		var slices []*discoveryv1.EndpointSlice
		for i := range 10_000 {
			ip := fmt.Sprintf("10.96.%d.%d", i>>8, i&255)
			if i%2 == 0 {
				ip = corev1.ClusterIPNone
			}
			name := fmt.Sprint("service-", i)
			services = append(services, makeService("default", name, ip, servicePort("http", "TCP", 80)))
			s := makeSlice("default", name+"-abcde", name, []discoveryv1.EndpointPort{endpointPort("http", 80)})
			for j := range 5 {
				s.Endpoints = append(s.Endpoints, ready(fmt.Sprintf("10.%d.%d.%d", 128+j, i>>8, i&255), ""))
			}
			slices = append(slices, s)
		}
		measure(1)
		x := newIndex()
		for i, s := range services {
			x.put(serviceKey(s.Namespace, s.Name), newService(s, slices[i:i+1]))
		}
		measure(2)
		require.Len(b, x.services, len(slices))
		b.ReportMetric(float64(memory[1].HeapAlloc-memory[0].HeapAlloc)/1e6, "objects-MB")
		b.ReportMetric(float64(memory[2].HeapAlloc-memory[1].HeapAlloc)/1e6, "index-MB")
		runtime.KeepAlive(services)
	}
}
