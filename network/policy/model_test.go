package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// world generates random clusters with few names, labels, addresses and ports, so that many rules match.
type world struct{ *rand.Rand }

func pick[T any](w world, of ...T) T { return of[w.IntN(len(of))] }

func (w world) chance(percent int) bool { return w.IntN(100) < percent }

func (w world) labels() map[string]string {
	l := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if w.chance(70) {
			l[key] = pick(w, "a", "b", "c")
		}
	}
	return l
}

func (w world) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if w.chance(25) {
		return s
	}
	if w.chance(60) {
		s.MatchLabels = map[string]string{pick(w, "app", "tier"): pick(w, "a", "b", "c")}
	}
	if w.chance(50) {
		r := metav1.LabelSelectorRequirement{Key: pick(w, "app", "tier"),
			Operator: pick(w, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists,
				metav1.LabelSelectorOpDoesNotExist)}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = []string{pick(w, "a", "b"), pick(w, "b", "c")}
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	return s
}

func (w world) address(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00::%x", w.IntN(24)))
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(w.IntN(24))})
}

func (w world) block() *networkingv1.IPBlock {
	v6 := w.chance(30)
	a, bits := w.address(v6), 27+w.IntN(6)
	if v6 {
		bits += 96
	}
	b := &networkingv1.IPBlock{CIDR: netip.PrefixFrom(a, bits).String()}
	if w.chance(10) {
		b.CIDR = pick(w, "0.0.0.0/0", "::/0", "010.0.0.0/8", "nonsense")
	}
	for w.chance(40) {
		b.Except = append(b.Except, netip.PrefixFrom(w.address(v6), min(bits+w.IntN(4), a.BitLen())).String())
	}
	return b
}

var worldProtocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}

func (w world) rule() (r rule) {
	for w.chance(55) {
		var p networkingv1.NetworkPolicyPeer
		if w.chance(30) {
			p.IPBlock = w.block()
		} else {
			if w.chance(60) {
				p.PodSelector = w.selector()
			}
			if w.chance(50) {
				p.NamespaceSelector = w.selector()
			}
		}
		r.peers = append(r.peers, p)
	}
	for w.chance(55) {
		var p networkingv1.NetworkPolicyPort
		if w.chance(70) {
			p.Protocol = ptr.To(pick(w, worldProtocols...))
		}
		switch w.IntN(4) {
		case 0:
			p.Port = ptr.To(intstr.FromString(pick(w, "http", "dns")))
		case 1:
			p.Port = ptr.To(intstr.FromInt32(int32(w.IntN(12))))
		case 2:
			p.Port = ptr.To(intstr.FromInt32(int32(w.IntN(12))))
			p.EndPort = ptr.To(int32(w.IntN(14)))
		}
		r.ports = append(r.ports, p)
	}
	return r
}

func (w world) policy(i int) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace(), Name: fmt.Sprint("p", i)}}
	p.Spec.PodSelector = *w.selector()
	for w.chance(50) {
		r := w.rule()
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{Ports: r.ports, From: r.peers})
	}
	for w.chance(40) {
		r := w.rule()
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{Ports: r.ports, To: r.peers})
	}
	p.Spec.PolicyTypes = pick(w, nil, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		[]networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		[]networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress})
	return p
}

func (w world) namespace() string { return pick(w, "one", "two", "three") }

func (w world) pod(i int) Pod {
	p := Pod{NamespacedName: types.NamespacedName{Namespace: w.namespace(), Name: fmt.Sprint("pod", i)},
		Labels: w.labels(), Node: pick(w, "here", "there", "elsewhere"), Created: time.Unix(int64(w.IntN(5)), 0)}
	if w.chance(85) {
		p.Addresses = append(p.Addresses, w.address(false))
	}
	if w.chance(50) {
		p.Addresses = append(p.Addresses, w.address(true))
	}
	for w.chance(50) {
		p.Ports = append(p.Ports, NamedPort{pick(w, "http", "dns"), pick(w, worldProtocols...), uint16(1 + w.IntN(11))})
	}
	return p
}

func (w world) flow() Flow {
	v6 := w.chance(30)
	f := Flow{Source: w.address(v6), Destination: w.address(v6), ToServer: w.chance(10)}
	if w.chance(90) {
		f.Protocol, f.Port = pick(w, worldProtocols...), uint16(1+w.IntN(13))
	}
	return f
}

// change applies one change to a cluster and to a compiler that follows it.
func (w world) change(c *Cluster, compiled *compiler) {
	switch w.IntN(6) {
	case 0, 1, 2:
		p := w.pod(w.IntN(20))
		index := slices.IndexFunc(c.Pods, func(o Pod) bool { return o.NamespacedName == p.NamespacedName })
		switch {
		case index < 0:
			c.Pods = append(c.Pods, p)
			compiled.setPod(p)
		case w.chance(30):
			c.Pods = slices.Delete(c.Pods, index, index+1)
			compiled.dropPod(p.NamespacedName)
		default:
			if w.chance(50) {
				p.Addresses = c.Pods[index].Addresses
			}
			c.Pods[index] = p
			compiled.setPod(p)
		}
	case 3, 4:
		p := w.policy(w.IntN(8))
		index := slices.IndexFunc(c.Policies, func(o *networkingv1.NetworkPolicy) bool {
			return o.Namespace == p.Namespace && o.Name == p.Name
		})
		switch {
		case index < 0:
			c.Policies = append(c.Policies, p)
			compiled.setPolicy(p)
		case w.chance(50):
			c.Policies = slices.Delete(c.Policies, index, index+1)
			compiled.dropPolicy(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		default:
			c.Policies[index] = p
			compiled.setPolicy(p)
		}
	case 5:
		n := Namespace{w.namespace(), w.labels()}
		index := slices.IndexFunc(c.Namespaces, func(o Namespace) bool { return o.Name == n.Name })
		switch {
		case index < 0:
			c.Namespaces = append(c.Namespaces, n)
			compiled.setNamespace(n)
		case w.chance(30):
			c.Namespaces = slices.Delete(c.Namespaces, index, index+1)
			compiled.dropNamespace(n.Name)
		default:
			c.Namespaces[index] = n
			compiled.setNamespace(n)
		}
	}
}

// TestRuleset_DecidesAsTheDocumentation follows clusters through random changes. After each change, the kernel's
// incrementally updated rules and newly compiled rules must both decide like Allowed.
func TestRuleset_DecidesAsTheDocumentation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := world{rand.New(rand.NewPCG(seed, 1))}
			c := &Cluster{Nodes: []string{"here", "there"},
				NodeAddresses: []netip.Addr{w.address(false), w.address(true)},
				Served:        []netip.Addr{w.address(false), w.address(true)}}
			compiled, kernel := newCompiler(c.Nodes), &mirror{}
			compiled.setMachine(c.NodeAddresses, c.Served)
			compiled.settle()
			require.NoError(t, kernel.Replace(&compiled.Ruleset))
			compiled.take()
			for range 60 {
				for n := w.IntN(4); n >= 0; n-- {
					w.change(c, compiled)
				}
				compiled.settle()
				require.NoError(t, kernel.Apply(compiled.take()))
				fresh := Compile(c)
				require.NoError(t, fresh.check())
				require.Len(t, kernel.Chains, len(fresh.Chains))
				require.Len(t, kernel.Sets, len(fresh.Sets))
				for range 150 {
					f := w.flow()
					want := Allowed(c, f)
					require.Equal(t, want, fresh.allows(f), "compiled: %+v", f)
					require.Equal(t, want, kernel.allows(f), "followed: %+v", f)
				}
			}
		})
	}
}
