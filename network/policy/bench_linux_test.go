package policy

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// thousand has 100 namespaces with 10 pods and 10 policies each. A policy selects a pod, and allows another pod of its
// namespace and all pods of the next namespace to reach a port.
type thousand struct{ *Enforcer }

func (t thousand) pod(i int) Pod {
	app := fmt.Sprint("app-", i/100)
	return Pod{NamespacedName: types.NamespacedName{Namespace: fmt.Sprint("team-", i%100), Name: app}, Node: "here",
		Labels: map[string]string{"app": app}, Addresses: []netip.Addr{testAddress(i)}}
}

func (t thousand) policy(i int, port int32) *networkingv1.NetworkPolicy {
	app := func(n int) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("app-", n)}}
	}
	next := &metav1.LabelSelector{MatchLabels: map[string]string{"name": fmt.Sprint("team-", (i+1)%100)}}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("team-", i%100), Name: fmt.Sprint("policy-", i/100)},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *app(i / 100),
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{
					{PodSelector: app((i/100 + 1) % 10)}, {NamespaceSelector: next}},
				Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(port))}},
			}},
		},
	}
}

// newThousand enforces all of them in a new network namespace.
func newThousand(b *testing.B) thousand {
	b.Helper()
	k, err := openKernel(namespaceFor(b))
	require.NoError(b, err)
	b.Cleanup(k.Close)
	o := Options{Nodes: []string{"here"}, Log: slog.New(slog.DiscardHandler)}
	require.NoError(b, o.complete())
	t := thousand{newEnforcer(k, o)}
	for i := range 100 {
		name := fmt.Sprint("team-", i)
		t.setNamespace(Namespace{Name: name, Labels: map[string]string{"name": name}})
	}
	for i := range 1000 {
		t.setPod(t.pod(i))
		t.setPolicy(t.policy(i, 80))
	}
	require.NoError(b, t.sync(true))
	require.Len(b, t.Sets["ingress4"].Elements, 1000)
	return t
}

// BenchmarkPolicies_All compiles 1,000 policies for 1,000 pods and writes them to an empty namespace. MB is the memory
// of the enforcer.
func BenchmarkPolicies_All(b *testing.B) {
	var before, after runtime.MemStats
	for b.Loop() {
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&before)
		b.StartTimer()
		t := newThousand(b)
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/1e6, "MB")
		runtime.KeepAlive(t)
		b.StartTimer()
	}
}

// BenchmarkPolicies_OnePod removes one of the 1,000 pods and adds it again.
func BenchmarkPolicies_OnePod(b *testing.B) {
	t := newThousand(b)
	p := t.pod(500)
	for i := 0; b.Loop(); i++ {
		if i%2 == 0 {
			t.dropPod(p.NamespacedName)
		} else {
			t.setPod(p)
		}
		require.NoError(b, t.sync(false))
	}
}

// BenchmarkPolicies_OnePolicy changes the port of one of the 1,000 policies.
func BenchmarkPolicies_OnePolicy(b *testing.B) {
	t := newThousand(b)
	for i := 0; b.Loop(); i++ {
		t.setPolicy(t.policy(500, int32(81+i%2)))
		require.NoError(b, t.sync(false))
	}
}

// BenchmarkPolicies_Resync rewrites all rules, as every ten minutes.
func BenchmarkPolicies_Resync(b *testing.B) {
	t := newThousand(b)
	for b.Loop() {
		require.NoError(b, t.sync(true))
	}
}
