package policy

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

var errKernel = errors.New("refused by the test")

// newTestEnforcer returns an enforcer without informers. It has pods with the labels app=0, app=1, … Each has a policy
// that allows ingress from all pods to its port 1000, 1001, …
func newTestEnforcer(t *testing.T, pods int) (*Enforcer, *mirror) {
	k := &mirror{}
	o := Options{Nodes: []string{"here"}, Log: slog.New(slog.DiscardHandler)}
	require.NoError(t, o.complete())
	e := newEnforcer(k, o)
	e.setNamespace(Namespace{Name: "default"})
	for i := range pods {
		app := fmt.Sprint(i)
		e.setPod(podAt("default", app, testAddress(i)))
		e.setPolicy(&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "allow-" + app},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{
					From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}},
					Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(int32(1000 + i)))}},
				}},
			},
		})
	}
	require.NoError(t, e.sync(true))
	return e, k
}

func testAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

// allowed reports for each pod whether its policy allows its port.
func (m *mirror) allowed(pods int) (all []bool) {
	for i := range pods {
		from := testAddress((i + 1) % pods)
		all = append(all, m.allows(Flow{Source: from, Destination: testAddress(i), Protocol: "TCP", Port: uint16(1000 + i)}))
	}
	return all
}

func TestEnforcer_IsolatesAPolicyThatTheKernelRejects(t *testing.T) {
	t.Parallel()
	e, k := newTestEnforcer(t, 8)
	require.NotContains(t, k.allowed(8), false)
	refused := "ingress/default/allow-3"
	k.refuse = func(r *Ruleset) error {
		if len(r.Chains[refused]) > 0 {
			return errKernel
		}
		return nil
	}
	require.NoError(t, e.sync(true))
	require.Equal(t, []bool{true, true, true, false, true, true, true, true}, k.allowed(8))
	require.Equal(t, 1.0, testutil.ToFloat64(e.metrics.failing))
	require.Equal(t, 1.0, testutil.ToFloat64(e.metrics.failures))
	require.Empty(t, e.take().Elements, "the kernel and the compiler agree")

	e.dropPod(podAt("default", "5").NamespacedName) // other changes still apply
	require.NoError(t, e.sync(false))
	require.Len(t, k.Sets["ingress4"].Elements, 7)

	k.refuse = nil
	e.change(e.forgive)
	require.NoError(t, e.sync(true))
	require.True(t, k.allowed(8)[3])
	require.Zero(t, testutil.ToFloat64(e.metrics.failing))
}

func TestEnforcer_RewritesAllRulesAfterARejectedChange(t *testing.T) {
	t.Parallel()
	e, k := newTestEnforcer(t, 3)
	k.Ruleset = newRuleset() // as if another program had deleted the rules
	e.dropPod(podAt("default", "2").NamespacedName)
	require.NoError(t, e.sync(false))
	require.NoError(t, k.check())
	f := Flow{Source: testAddress(1), Destination: testAddress(0), Protocol: "TCP", Port: 1000}
	require.True(t, k.allows(f))
	f.Port++
	require.False(t, k.allows(f))
}

func TestEnforcer_KeepsTheRulesIfTheKernelRejectsAll(t *testing.T) {
	t.Parallel()
	e, k := newTestEnforcer(t, 3)
	k.refuse = func(*Ruleset) error { return errKernel }
	e.dropPod(podAt("default", "2").NamespacedName)
	require.ErrorIs(t, e.sync(false), errKernel)
	require.Len(t, k.Sets["ingress4"].Elements, 3, "the earlier rules")
	require.Zero(t, testutil.ToFloat64(e.metrics.failing), "no policy is the cause")
	k.refuse = nil
	require.NoError(t, e.sync(true))
	require.Len(t, k.Sets["ingress4"].Elements, 2)
}

// spreading returns a policy for all pods, with a rule that has these numbers of ports, blocks and selectors.
func spreading(ports, blocks, selectors int) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "spreading"}}
	var r networkingv1.NetworkPolicyIngressRule
	for i := range ports {
		r.Ports = append(r.Ports, networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(int32(1 + 2*i)))})
	}
	for i := range blocks {
		r.From = append(r.From, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{
			CIDR: fmt.Sprintf("11.%d.%d.%d/32", i>>15, i>>7&255, i<<1&255)}})
	}
	for i := range selectors {
		r.From = append(r.From, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"app": fmt.Sprint(i)}}})
	}
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{r}
	return p
}

func TestCompiler_LimitsTheSizeOfPolicies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		policy *networkingv1.NetworkPolicy
		err    error
	}{
		{"many ports and blocks are two sets", spreading(10_000, 10_000, 0), nil},
		{"too many blocks", spreading(1, maxElements+1, 0), errLarge},
		{"as many selectors as there may be", spreading(1, 0, maxSelectors), nil},
		{"too many selectors", spreading(1, 0, maxSelectors+1), errLarge},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			compiled := newCompiler([]string{"here"})
			compiled.setPod(podAt("default", "0", testAddress(0)))
			compiled.setPolicy(c.policy)
			compiled.settle()
			require.NoError(t, compiled.check())
			b := compiled.policies[nameOf(c.policy)].bodies[Ingress]
			require.ErrorIs(t, b.err, c.err)
			require.Less(t, len(compiled.Sets), 2*maxSelectors+20)
			require.False(t, compiled.allows(Flow{Source: testAddress(9), Destination: testAddress(0), Protocol: "TCP", Port: 2}))
		})
	}
}

func TestCompiler_CompilesWaitingPoliciesWhenANamespaceHasRoom(t *testing.T) {
	t.Parallel()
	compiled := newCompiler([]string{"here"})
	compiled.setPod(podAt("default", "0", testAddress(0)))
	compiled.setPod(podAt("other", "0", testAddress(1)))
	const fit = maxSpaceSelectors / maxSelectors
	for i := range fit + 1 {
		p := spreading(0, 0, maxSelectors)
		p.Name = fmt.Sprintf("spreading-%02d", i)
		compiled.setPolicy(p)
	}
	other := spreading(0, 0, maxSelectors)
	other.Namespace = "other"
	compiled.setPolicy(other)
	compiled.settle()
	require.Len(t, compiled.failing, 1, "the other namespace has its own budget")
	for b := range compiled.failing {
		require.ErrorIs(t, b.err, errBudget)
		require.True(t, strings.HasPrefix(b.policy.name.Name, "spreading-"))
	}
	compiled.dropPolicy(nameOf(&metav1.ObjectMeta{Namespace: "default", Name: "spreading-00"}))
	compiled.settle()
	require.Empty(t, compiled.failing)
	require.NoError(t, compiled.check())
}
