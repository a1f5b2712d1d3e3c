package proxy

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// many updates a ruleset with 10,000 Services of one port and five endpoints each, and commits them.
func many(b *testing.B, rules *ruleset) {
	b.Helper()
	for i := range 10_000 {
		s, slices := numbered(i, 5)
		rules.update(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, s, slices)
	}
	require.NoError(b, rules.commit(ipv4))
}

func numbered(i, ends int) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	s := newService(fmt.Sprint("service-", i), i, func(s *corev1.Service) {
		s.Spec.Ports, s.Spec.ClusterIPs = s.Spec.Ports[:1], s.Spec.ClusterIPs[:1]
	})
	var all []discoveryv1.Endpoint
	for j := range ends {
		all = append(all, newEndpoint(fmt.Sprintf("10.%d.%d.%d", 128+j, i>>8, i&255), "", elsewhere))
	}
	for i := range all {
		all[i].Addresses = all[i].Addresses[:1]
	}
	return s, newSlices(s, all...)[:1]
}

// resident returns the memory of this process, in bytes.
func resident(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(b, err)
	var kB float64
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	_, err = fmt.Sscan(after, &kB)
	require.NoError(b, err)
	return kB * 1024
}

// BenchmarkFullSync writes 10,000 Services with five endpoints each to an empty namespace.
func BenchmarkFullSync(b *testing.B) {
	for b.Loop() {
		rules, err := openRuleset(namespace(b), nil)
		require.NoError(b, err)
		many(b, rules)
		b.ReportMetric(resident(b)/1e6, "MB")
		rules.close()
	}
}

// BenchmarkResync compares the same Services with the kernel's.
func BenchmarkResync(b *testing.B) {
	rules, err := openRuleset(namespace(b), nil)
	require.NoError(b, err)
	defer rules.close()
	many(b, rules)
	for b.Loop() {
		rules.forceFullSync()
		require.NoError(b, rules.commit(ipv4))
	}
}

// BenchmarkOneChange removes an endpoint from one of 10,000 Services, and adds it again.
func BenchmarkOneChange(b *testing.B) {
	rules, err := openRuleset(namespace(b), nil)
	require.NoError(b, err)
	defer rules.close()
	many(b, rules)
	s, five := numbered(5000, 5)
	_, four := numbered(5000, 4)
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	for i := 0; b.Loop(); i++ {
		rules.update(name, s, [][]*discoveryv1.EndpointSlice{four, five}[i%2])
		require.NoError(b, rules.commit(ipv4))
	}
}
