package dns

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

var (
	modelServices  = []string{"a", "b", "c"}
	modelSlices    = []string{"x", "y", "z"}
	modelHostnames = []string{"", "", "h0", "h1"}
	modelAddresses = []string{"10.3.0.1", "10.3.0.2", "10.3.0.3", "10.3.0.4"}
)

func newZone() *zone {
	return &zone{domain: "cluster.local.", index: newIndex(), pods: PodNamesInsecure, serial: func() uint32 { return 1 }}
}

// answers returns the answers to all questions that may have one.
func (z *zone) answers() map[string][]string {
	all := map[string][]string{}
	ask := func(name string, types ...uint16) {
		for _, t := range types {
			if f := z.find(name, name, t, 1000); f.exists {
				all[fmt.Sprint(name, dns.TypeToString[t], f.alias)] = texts(append(f.answer, f.extra...))
			}
		}
	}
	for _, s := range modelServices {
		name := s + ".default.svc.cluster.local."
		ask(name, dns.TypeA)
		ask("_http._tcp."+name, dns.TypeSRV)
		ask("_tcp."+name, dns.TypeA)
		for _, label := range append(modelHostnames[2:], "10-3-0-1", "10-3-0-2", "10-3-0-3", "10-3-0-4") {
			ask(label+"."+name, dns.TypeA)
		}
	}
	for _, a := range append(modelAddresses, "10.96.7.1", "10.96.7.2", "10.96.7.3") {
		reverse, _ := dns.ReverseAddr(a)
		ask(reverse, dns.TypePTR)
	}
	return all
}

// fresh returns the answers of an index that is built at once from the API's objects.
func fresh(t *testing.T, client kubernetes.Interface) map[string][]string {
	z := newZone()
	services, err := client.CoreV1().Services("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	all, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range services.Items {
		s := &services.Items[i]
		var slices []*discoveryv1.EndpointSlice
		for j := range all.Items {
			if all.Items[j].Labels[discoveryv1.LabelServiceName] == s.Name {
				slices = append(slices, &all.Items[j])
			}
		}
		z.index.put(serviceKey(s.Namespace, s.Name), newService(s, slices))
	}
	return z.answers()
}

func randomService(r *rand.Rand) *corev1.Service {
	i := r.IntN(len(modelServices))
	ports := []corev1.ServicePort{servicePort("http", "TCP", 80+int32(r.IntN(2)))}
	switch r.IntN(4) {
	case 0:
		return makeExternal("default", modelServices[i], fmt.Sprintf("www%d.example.org", r.IntN(2)))
	case 1:
		return makeService("default", modelServices[i], fmt.Sprintf("10.96.7.%d", i+1), ports...)
	}
	s := makeService("default", modelServices[i], corev1.ClusterIPNone, ports...)
	s.Spec.PublishNotReadyAddresses = r.IntN(2) == 0
	return s
}

func randomSlice(r *rand.Rand) *discoveryv1.EndpointSlice {
	pick := func(of []string) string { return of[r.IntN(len(of))] }
	s := makeSlice("default", pick(modelSlices), pick(modelServices), []discoveryv1.EndpointPort{endpointPort("http", 80)})
	for range r.IntN(4) {
		make := ready
		if r.IntN(3) == 0 {
			make = unready
		}
		s.Endpoints = append(s.Endpoints, make(pick(modelAddresses), pick(modelHostnames)))
	}
	return s
}

// change makes one random change in the API: it creates, deletes or updates a Service or an EndpointSlice.
func change(t *testing.T, client kubernetes.Interface, r *rand.Rand) {
	t.Helper()
	ctx := t.Context()
	var err error
	switch r.IntN(8) {
	case 0:
		err = client.CoreV1().Services("default").Delete(ctx, randomService(r).Name, deleteNow)
	case 1:
		err = client.DiscoveryV1().EndpointSlices("default").Delete(ctx, randomSlice(r).Name, deleteNow)
	case 2, 3:
		s := randomService(r)
		if _, err = client.CoreV1().Services("default").Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			_, err = client.CoreV1().Services("default").Create(ctx, s, metav1.CreateOptions{})
		}
	default:
		s := randomSlice(r)
		if _, err = client.DiscoveryV1().EndpointSlices("default").Update(ctx, s, metav1.UpdateOptions{}); err != nil {
			_, err = client.DiscoveryV1().EndpointSlices("default").Create(ctx, s, metav1.CreateOptions{})
		}
	}
	// An update of a Service may be invalid: its cluster IP must not change.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}

// TestWatch_AnswersAsAFreshIndex changes objects at random, and compares all answers with the answers of a new index.
func TestWatch_AnswersAsAFreshIndex(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	client := clientOf(t, apiServer(t))
	z := newZone()
	w, err := newWatch(client, z.index, false, slog.Default(), func() {})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.factory.StartWithContext(ctx)
	ended := make(chan struct{})
	go func() { w.run(ctx, func() {}); close(ended) }()
	defer func() { cancel(); w.factory.Shutdown(); <-ended }()
	seen := 0
	for range 100 {
		for range 1 + r.IntN(5) {
			change(t, client, r)
		}
		want := fresh(t, client)
		seen = max(seen, len(want))
		var got map[string][]string
		eventually(t, func() bool { got = z.answers(); return fmt.Sprint(got) == fmt.Sprint(want) })
		require.Equal(t, want, got)
	}
	require.Greater(t, seen, 10, "the changes produce answers")
}

// TestIndex_ReleasesDeletedServices puts services and removes them.
func TestIndex_ReleasesDeletedServices(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	x := newIndex()
	for range 1000 {
		s := randomService(r)
		x.put(serviceKey(s.Namespace, s.Name), newService(s, []*discoveryv1.EndpointSlice{randomSlice(r)}))
	}
	require.NotEmpty(t, x.reverse)
	for _, s := range modelServices {
		x.put(serviceKey("default", s), nil)
	}
	require.Empty(t, x.services)
	require.Equal(t, map[netip.Addr][]*endpoint{}, x.reverse)
}
