package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/network/nft"
)

// limit is how long an expected event may take on a busy machine.
const limit = 30 * time.Second

// podAt returns a pod of this machine with a label app and the port 80 as http.
func podAt(namespace, app string, addresses ...netip.Addr) Pod {
	return Pod{NamespacedName: types.NamespacedName{Namespace: namespace, Name: app},
		Labels: map[string]string{"app": app}, Node: "here", Addresses: addresses,
		Ports: []NamedPort{{"http", "TCP", 80}, {"dns", "UDP", 53}}}
}

// fleet is a lab with the pods web, front and back of the namespace default and other of the namespace other.
type fleet struct {
	*lab
	Cluster
	kernel                                        kernel
	web, web6, front, front6, back, other, other6 netip.Addr
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{lab: newLab(t)}
	f.web, f.web6 = f.pod(10)
	f.front, f.front6 = f.pod(11)
	f.back, _ = f.pod(12)
	f.other, f.other6 = f.pod(13)
	f.serve(f.web, 53, 80, 81, 90)
	f.serve(f.web6, 80, 81)
	f.serve(f.other, 80)
	f.Cluster = Cluster{
		Nodes: []string{"here"}, NodeAddresses: []netip.Addr{routerV4, routerV6},
		Namespaces: []Namespace{{"default", map[string]string{"name": "default"}}, {"other", map[string]string{"name": "other"}}},
		Pods: []Pod{podAt("default", "web", f.web, f.web6), podAt("default", "front", f.front, f.front6),
			podAt("default", "back", f.back), podAt("other", "other", f.other, f.other6)},
	}
	var err error
	f.kernel, err = openKernel(f.router)
	require.NoError(t, err)
	t.Cleanup(f.kernel.Close)
	return f
}

// enforce sets the policies of the cluster.
func (f *fleet) enforce(documents ...string) {
	f.Helper()
	f.Policies = policies(f, documents...)
	require.NoError(f, f.kernel.Replace(Compile(&f.Cluster)))
}

// flowTest is a connection, and whether it is allowed.
type flowTest struct {
	network  string
	from, to netip.Addr
	port     uint16
	allowed  bool
}

func (f *fleet) check(tests ...flowTest) {
	f.Helper()
	results := make(chan string, len(tests))
	for _, c := range tests {
		go func() {
			result := ""
			if got := f.reaches(c.network, c.from, c.to, c.port); got != c.allowed {
				result = fmt.Sprintf("%s from %s to %s port %d: %v", c.network, c.from, c.to, c.port, got)
			}
			results <- result
		}()
	}
	for range tests {
		require.Empty(f, <-results)
	}
}

func TestKernel_IngressFromPods(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.enforce()
	f.check(flowTest{"tcp", f.front, f.web, 80, true}, flowTest{"udp", f.other, f.web, 81, true},
		flowTest{"tcp", f.front6, f.web6, 80, true})
	f.enforce(`{spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: front}}}]}]}}`)
	f.check(
		flowTest{"tcp", f.front, f.web, 80, true}, flowTest{"udp", f.front, f.web, 81, true},
		flowTest{"tcp", f.front6, f.web6, 80, true},
		flowTest{"tcp", f.back, f.web, 80, false}, flowTest{"udp", f.back, f.web, 81, false},
		flowTest{"tcp", f.other, f.web, 80, false}, flowTest{"tcp", f.other6, f.web6, 80, false},
		flowTest{"tcp", f.web, f.other, 80, true}, // replies to its own connections pass
		flowTest{"tcp", routerV4, f.web, 80, true}, flowTest{"tcp", routerV6, f.web6, 80, true},
		flowTest{"tcp", f.web, f.web, 80, true},
	)
}

func TestKernel_DefaultDenyBothWays(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.enforce(`{spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}`)
	f.check(
		flowTest{"tcp", f.front, f.web, 80, false}, flowTest{"udp", f.other, f.web, 81, false},
		flowTest{"tcp", f.front6, f.web6, 80, false}, flowTest{"tcp", f.web, f.other, 80, false},
		flowTest{"tcp", routerV4, f.web, 80, true}, flowTest{"tcp", f.web6, f.web6, 80, true},
	)
	f.enforce(`{spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}`,
		`{spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{namespaceSelector: {matchLabels: {name: other}}}]}]}}`,
		`{spec: {podSelector: {matchLabels: {app: front}}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]}}`)
	f.check(
		flowTest{"tcp", f.other, f.web, 80, true}, flowTest{"tcp", f.other6, f.web6, 80, true},
		flowTest{"tcp", f.front, f.web, 80, false}, flowTest{"tcp", f.front, f.other, 80, false},
	)
}

func TestKernel_PortsAndRanges(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	web := `{spec: {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [`
	f.enforce(web + `{port: http}, {port: dns, protocol: UDP}]}]}}`)
	f.check(
		flowTest{"tcp", f.front, f.web, 80, true}, flowTest{"udp", f.front, f.web, 53, true},
		flowTest{"tcp", f.front6, f.web6, 80, true}, flowTest{"tcp", f.front6, f.web6, 81, false},
		flowTest{"tcp", f.front, f.web, 81, false}, flowTest{"udp", f.front, f.web, 80, false},
		flowTest{"tcp", f.front, f.web, 53, false},
	)
	f.enforce(web + `{port: 81, endPort: 90}, {port: 85}]}]}}`)
	f.check(
		flowTest{"tcp", f.front, f.web, 80, false}, flowTest{"tcp", f.front, f.web, 81, true},
		flowTest{"tcp", f.front, f.web, 90, true}, flowTest{"udp", f.front, f.web, 90, false},
	)
	f.enforce(web + `{port: 53}, {port: 80}, {port: 82, endPort: 90}, {protocol: UDP}]}]}}`)
	f.check(
		flowTest{"tcp", f.front, f.web, 80, true}, flowTest{"tcp", f.front, f.web, 81, false},
		flowTest{"tcp", f.front, f.web, 90, true}, flowTest{"udp", f.front, f.web, 81, true},
		flowTest{"tcp", f.front6, f.web6, 80, true}, flowTest{"tcp", f.front6, f.web6, 81, false},
	)
}

func TestKernel_IPBlocksWithExceptions(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.enforce(`{spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [
		{ipBlock: {cidr: 0.0.0.0/0, except: [10.244.0.12/31, 10.244.0.13/32]}}, {ipBlock: {cidr: "fd00:244::b/128"}}]}]}}`)
	f.check(
		flowTest{"tcp", f.front, f.web, 80, true}, flowTest{"tcp", f.front6, f.web6, 80, true},
		flowTest{"tcp", f.back, f.web, 80, false}, flowTest{"tcp", f.other, f.web, 80, false},
		flowTest{"tcp", f.other6, f.web6, 80, false},
	)
	f.enforce(`{spec: {podSelector: {matchLabels: {app: front}}, policyTypes: [Egress], egress: [
		{to: [{ipBlock: {cidr: 10.244.0.0/28}}, {podSelector: {matchLabels: {app: web}}}], ports: [{port: 80}, {port: 53}]}]}}`)
	f.check(
		flowTest{"tcp", f.front, f.web, 80, true}, flowTest{"tcp", f.front, f.web, 53, true},
		flowTest{"tcp", f.front, f.web, 81, false}, flowTest{"tcp", f.front, f.other, 80, true},
		flowTest{"tcp", f.front6, f.web6, 80, true}, flowTest{"tcp", f.back, f.web, 81, true},
	)
}

// translate redirects connections to an address to another one, like a Service. If the pod itself is the endpoint, the
// router's address becomes the source.
func (f *fleet) translate(from, to netip.Addr) {
	f.Helper()
	conn, err := nft.Open(f.router)
	require.NoError(f, err)
	defer conn.Close()
	tx, err := conn.Begin()
	require.NoError(f, err)
	table := tx.AddTable(&nftables.Table{Name: "services", Family: nftables.TableFamilyIPv4})
	chain := tx.AddChain(&nftables.Chain{Name: "prerouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	tx.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		destination(false, first), equal(from.AsSlice()),
		&expr.Immediate{Register: first, Data: to.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: first},
	}})
	chain = tx.AddChain(&nftables.Chain{Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	tx.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		source(false, first), equal(to.AsSlice()), destination(false, first), equal(to.AsSlice()), &expr.Masq{},
	}})
	require.NoError(f, tx.Commit())
}

func TestKernel_SeesThePodBehindAService(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	service := netip.MustParseAddr("10.96.0.10")
	f.translate(service, f.web)
	f.enforce(
		`{spec: {podSelector: {matchLabels: {app: front}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: web}}}]}]}}`,
		`{spec: {podSelector: {matchLabels: {app: back}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.96.0.0/16}}]}]}}`,
		`{spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]}}`)
	f.check(
		flowTest{"tcp", f.front, service, 80, true}, flowTest{"tcp", f.front, service, 81, false},
		flowTest{"tcp", f.back, service, 80, false}, flowTest{"tcp", f.other, service, 80, false},
		flowTest{"tcp", f.web, service, 80, true}, // a pod reaches itself, even by its Service
	)
}

func TestKernel_ConnectionsOutliveThePolicyThatAllowedThem(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.enforce()
	conn, err := f.connect("tcp", f.front, netip.AddrPortFrom(f.web, 80), limit)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.True(t, echoes(conn, limit))
	f.enforce(`{spec: {podSelector: {}, policyTypes: [Ingress, Egress]}}`)
	require.True(t, echoes(conn, limit), "the established connection")
	f.check(flowTest{"tcp", f.front, f.web, 80, false})
}

func TestKernel_AppliesEgressToServersOfTheNamespace(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	dns := netip.MustParseAddr("10.96.0.53")
	f.in(f.router, func() error { return up("lo", dns) })
	f.serve(dns, 53)
	f.serve(routerV4, 53)
	f.Served = []netip.Addr{dns}
	f.enforce(`{spec: {podSelector: {matchLabels: {app: front}}, policyTypes: [Egress]}}`,
		`{spec: {podSelector: {matchLabels: {app: back}}, policyTypes: [Egress], egress: [{ports: [{port: 53, protocol: UDP}]}]}}`)
	f.check(
		flowTest{"udp", f.front, dns, 53, false}, flowTest{"udp", f.back, dns, 53, true},
		flowTest{"tcp", f.back, dns, 53, false}, flowTest{"udp", f.other, dns, 53, true},
		flowTest{"udp", f.front, routerV4, 53, true},
	)
}

// TestKernel_AcceptsRandomRulesets writes random rulesets and changes to a kernel. It rejects rules that the mirror of
// the model tests might accept.
func TestKernel_AcceptsRandomRulesets(t *testing.T) {
	t.Parallel()
	kernel, err := openKernel(namespaceFor(t))
	require.NoError(t, err)
	defer kernel.Close()
	for seed := range uint64(3) {
		w := world{rand.New(rand.NewPCG(seed, 2))}
		c := &Cluster{Nodes: []string{"here", "there"}}
		compiled := newCompiler(c.Nodes)
		require.NoError(t, kernel.Replace(&compiled.Ruleset))
		compiled.take()
		for range 60 {
			for range 3 {
				w.change(c, compiled)
			}
			compiled.settle()
			require.NoError(t, kernel.Apply(compiled.take()))
		}
		require.NoError(t, kernel.Replace(Compile(c)))
	}
}

func TestCleanup_RemovesTheTable(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.enforce(`{spec: {podSelector: {}}}`)
	f.check(flowTest{"tcp", f.front, f.web, 80, false})
	require.NoError(t, Cleanup(f.router))
	f.check(flowTest{"tcp", f.front, f.web, 80, true})
	require.NoError(t, Cleanup(f.router), "the table does not exist")
}
