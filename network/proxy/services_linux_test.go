package proxy

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// rules opens a ruleset for the node of a world.
func (w *world) rules(change ...func(*policy)) *ruleset {
	w.Helper()
	return w.rulesOf(nil, change...)
}

func (w *world) rulesOf(machine Machine, change ...func(*policy)) *ruleset {
	w.Helper()
	b, err := openRuleset(w.node, machine)
	require.NoError(w, err)
	w.Cleanup(b.close)
	nodes := []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}
	b.setNodes(topology{nodes: map[string]bool{here: true}, zones: map[string]bool{"a": true}}, nodes, nodes)
	cidrs := [families]string{"10.96.0.0/16", "fd96::/112"}
	for f := range families {
		p := policy{serviceCIDRs: []netip.Prefix{netip.MustParsePrefix(cidrs[f])}}
		for _, c := range change {
			c(&p)
		}
		b.setPolicy(f, p)
	}
	return b
}

func (w *world) set(b *ruleset, s *corev1.Service, slices []*discoveryv1.EndpointSlice) {
	w.Helper()
	b.update(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, s, slices)
	w.commit(b)
}

func (w *world) commit(b *ruleset) {
	w.Helper()
	for f := range families {
		require.NoError(w, b.commit(f))
		_, err := b.cleanUpConntrack(f)
		require.NoError(w, err)
	}
}

func (p *pod) endpoint(change ...func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
	return newEndpoint(p.v4.String(), p.v6.String(), change...)
}

func TestProxy_ForwardsClusterIPsToTheEndpoints(t *testing.T) {
	w := newWorld(t)
	a, b, client := w.pod().serve(8080), w.pod().serve(8080), w.pod()
	rules := w.rules()
	s := newService("web", 1)
	w.set(rules, s, newSlices(s, a.endpoint(), b.endpoint()))
	for _, network := range []string{"tcp", "udp"} {
		for _, to := range []string{"10.96.0.1:80", "[fd96::1]:80"} {
			seen := map[string]bool{}
			require.Eventually(t, func() bool {
				name, from, err := ask(client.namespace, network, to)
				require.NoError(t, err)
				require.Contains(t, []string{client.v4.String(), client.v6.String()}, from, "the source address is kept")
				seen[name] = true
				return len(seen) == 2
			}, limit, tick, "both endpoints get connections")
			w.answers(w.node, network, to, a, b)
		}
	}
}

func TestProxy_RejectsWithoutEndpoints(t *testing.T) {
	w := newWorld(t)
	client := w.pod()
	s := newService("web", 1)
	w.set(w.rules(), s, nil)
	for _, network := range []string{"tcp", "udp"} {
		for _, to := range []string{"10.96.0.1:80", "[fd96::1]:80", "10.96.0.1:81", "[fd96::1]:81"} {
			w.refuses(client.namespace, network, to)
			if network == "tcp" { // the kernel fails a process's own UDP packet with EPERM
				w.refuses(w.node, network, to)
			}
		}
	}
	for _, to := range []string{"10.96.0.2:80", "[fd96::2]:80"} {
		w.drops(client.namespace, to)
	}
}
