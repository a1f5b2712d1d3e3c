package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// kernelState returns the kernel's rules and elements of the proxy, as text that can be compared.
func kernelState(t *testing.T, in *os.File) []string {
	t.Helper()
	var lines []string
	for f := range families {
		table, err := openTable(f, in)
		require.NoError(t, err)
		defer table.close()
		tx, err := table.kernel.Begin()
		require.NoError(t, err)
		all, err := tx.ListChainsOfTableFamily(f.tableFamily())
		require.NoError(t, err)
		for _, c := range all {
			lines = append(lines, fmt.Sprintf("%s chain %s %s", f, c.Name, c.Type))
			rules, err := tx.GetRules(f.table(), c)
			require.NoError(t, err)
			for i, r := range rules {
				lines = append(lines, fmt.Sprintf("%s rule %s %d %s", f, c.Name, i, expressions(r.Exprs)))
			}
		}
		kernelSets, err := tx.GetSets(f.table())
		require.NoError(t, err)
		for _, s := range kernelSets {
			lines = append(lines, fmt.Sprintf("%s set %s", f, s.Name))
			elements, err := tx.GetSetElements(s)
			require.NoError(t, err)
			for _, e := range elements {
				lines = append(lines, fmt.Sprintf("%s element %s %x %x %x", f, s.Name, e.Key, e.KeyEnd, e.Val))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

func expressions(all []expr.Any) string {
	var b strings.Builder
	for _, e := range all {
		if l, ok := e.(*expr.Lookup); ok {
			l.SetID = 0
		}
		if d, ok := e.(*expr.Dynset); ok {
			d.SetID = 0
		}
		fmt.Fprintf(&b, "%T%+v ", e, e)
	}
	return b.String()
}

// randomService returns one of a few Services with random features, or nil for a deleted one.
func randomService(r *rand.Rand, name string, number int) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	if r.IntN(8) == 0 {
		return nil, nil
	}
	features := []func(*corev1.Service){exposed, localOutside, localInside, sticky(int32(1 + r.IntN(100))),
		func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} },
		func(s *corev1.Service) { s.Spec.ClusterIPs = s.Spec.ClusterIPs[:1] },
		func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] },
		func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolSCTP },
		func(s *corev1.Service) { s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, "192.0.2.10", "10.96.0.1") },
		func(s *corev1.Service) { s.CreationTimestamp.Time = s.CreationTimestamp.AddDate(r.IntN(3), 0, 0) },
		func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = [][]string{{"10.0.0.0/8", "10.1.0.0/16"}, {"192.0.2.0/24", "::/0"},
				{"10.1.0.0/16", "2001:db8::/32"}}[r.IntN(3)]
		}}
	var chosen []func(*corev1.Service)
	for _, f := range features {
		if r.IntN(4) == 0 {
			chosen = append(chosen, f)
		}
	}
	s := newService(name, number, chosen...)
	for i := range s.Spec.Ports { // the API server assigns a node port to one Service only
		if s.Spec.Ports[i].NodePort != 0 {
			s.Spec.Ports[i].NodePort += int32(number)
		}
	}
	return s, newSlices(s, randomEndpoints(r)...)
}

func randomEndpoints(r *rand.Rand) []discoveryv1.Endpoint {
	ends := make([]discoveryv1.Endpoint, r.IntN(6))
	for i := range ends {
		n := r.IntN(9)
		ends[i] = newEndpoint(fmt.Sprintf("10.244.0.%d", n), fmt.Sprintf("fd00::%x", n))
		if r.IntN(3) == 0 {
			elsewhere(&ends[i])
		}
		switch r.IntN(6) {
		case 0:
			terminating(&ends[i])
		case 1:
			ends[i].Conditions.Ready = ptr.To(false)
		case 2:
			ends[i].NodeName = nil
		case 3:
			ends[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}
		}
	}
	return ends
}

// recorder is a machine that records its forwarding.
type recorder struct {
	passed map[uint8]map[netip.AddrPort]netip.Addr
}

func (*recorder) StandIns() ([]netip.Prefix, error) {
	return []netip.Prefix{netip.MustParsePrefix("240.0.0.0/7"), netip.MustParsePrefix("fd63:6f78:7377::/63")}, nil
}

func (*recorder) Machines() []netip.Addr { return []netip.Addr{netip.MustParseAddr("10.244.0.1")} }

func (r *recorder) ServeAddresses(all map[uint8]map[netip.AddrPort]netip.Addr) ([]netip.AddrPort, error) {
	r.passed = all
	return nil, nil
}

// model is a proxy in a namespace of its own, with its objects.
type model struct {
	*world
	machine recorder
	rules   *ruleset
}

func newModel(t *testing.T) *model {
	t.Helper()
	m := &model{world: &world{T: t, node: namespace(t)}}
	m.begin()
	return m
}

// begin starts or restarts the proxy.
func (m *model) begin() {
	m.Helper()
	m.rules = m.rulesOf(&m.machine)
}

// commit updates the kernel and the machine with all objects.
func (m *model) commit(objects map[types.NamespacedName]object) {
	m.Helper()
	require.NoError(m, m.rules.joinMachine())
	for _, name := range m.rules.takeOutdated() {
		m.rules.update(name, objects[name].service, objects[name].slices)
	}
	m.world.commit(m.rules)
	_, _, err := m.rules.serveMachine()
	require.NoError(m, err)
}

// After any changes in any order, the kernel and the machine have the same state as with a new proxy.
func TestModel_ChangesEqualAFullSync(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	m := newModel(t)
	objects := map[types.NamespacedName]object{}
	update := func(m *model, name types.NamespacedName) {
		m.rules.update(name, objects[name].service, objects[name].slices)
	}
	for range 150 {
		for range 1 + r.IntN(3) {
			i := r.IntN(5)
			name := types.NamespacedName{Namespace: "test", Name: string(rune('a' + i))}
			s, slices := randomService(r, name.Name, i+1)
			objects[name] = object{s, slices}
			update(m, name)
		}
		if r.IntN(10) == 0 { // restart the proxy
			m.begin()
			for name := range objects {
				update(m, name)
			}
		}
		if r.IntN(10) == 0 {
			m.rules.forceFullSync()
		}
		m.commit(objects)

		fresh := newModel(t)
		for name := range objects {
			update(fresh, name)
		}
		fresh.commit(objects)
		require.Equal(t, kernelState(t, fresh.node), withoutIdle(kernelState(t, m.node), m.rules))
		require.Equal(t, fresh.machine.passed, m.machine.passed)
		fresh.rules.close()
		_ = fresh.node.Close()
	}
}

// withoutIdle returns a state without unused chains that are kept.
func withoutIdle(all []string, rules *ruleset) []string {
	return slices.DeleteFunc(all, func(line string) bool {
		for f := range families {
			for name, c := range rules.tables[f].state.chains {
				if c.users == 0 && (strings.HasPrefix(line, fmt.Sprintf("%s chain %s ", f, name)) ||
					strings.HasPrefix(line, fmt.Sprintf("%s rule %s ", f, name))) {
					return true
				}
			}
		}
		return false
	})
}

func TestFullSync_RemovesChainsWithoutUsers(t *testing.T) {
	t.Parallel()
	w := &world{T: t, node: namespace(t)}
	rules := w.rules()
	s := newService("web", 1)
	one, two := newEndpoint("10.244.0.1", "fd00::1"), newEndpoint("10.244.0.2", "fd00::2")
	w.set(rules, s, newSlices(s, one))
	before := kernelState(t, w.node)
	w.set(rules, s, newSlices(s, one, two))
	w.set(rules, s, newSlices(s, one))
	require.NotEqual(t, before, kernelState(t, w.node), "the chain for two endpoints stays")
	require.Equal(t, before, withoutIdle(kernelState(t, w.node), rules))
	rules.forceFullSync()
	w.commit(rules)
	require.Equal(t, before, kernelState(t, w.node))
}

func TestState_KeepsFewChainsWithoutUsers(t *testing.T) {
	t.Parallel()
	s := newState()
	for i := range 3 * maxIdle {
		name := fmt.Sprint("pick-", i)
		s.useChain(name, chain{count: i})
		s.releaseChain(name)
	}
	require.Len(t, s.chains, maxIdle)
	s.since(snapshot{})
	require.Empty(t, s.chains)
}

func TestFullSync_RepairsForeignChanges(t *testing.T) {
	t.Parallel()
	w := &world{T: t, node: namespace(t)}
	rules := w.rules()
	s := newService("web", 1, exposed, sticky(100))
	w.set(rules, s, newSlices(s, newEndpoint("10.244.0.1", "fd00::1")))
	before := kernelState(t, w.node)
	table := rules.tables[ipv4]
	tx, err := table.kernel.Begin()
	require.NoError(t, err)
	tx.FlushSet(endpoints.kernelSet(ipv4.table(), ipv4))
	tx.FlushChain(&nftables.Chain{Table: ipv4.table(), Name: "services"})
	tx.AddChain(&nftables.Chain{Table: ipv4.table(), Name: "stray"})
	require.NoError(t, tx.Commit())
	rules.forceFullSync()
	w.commit(rules)
	require.Equal(t, before, kernelState(t, w.node))

	require.NoError(t, Cleanup(w.node))
	rules.forceFullSync()
	w.commit(rules)
	require.Equal(t, before, kernelState(t, w.node))
}

func TestFullSync_ReplacesATableOfAnotherLayout(t *testing.T) {
	t.Parallel()
	w := &world{T: t, node: namespace(t)}
	rules := w.rules()
	table := rules.tables[ipv4]
	tx, err := table.kernel.Begin()
	require.NoError(t, err)
	k := tx.AddTable(ipv4.table())
	tx.AddSet(&nftables.Set{Table: k, Name: clusterIPs.name(), KeyType: nftables.TypeInetService}, nil)
	tx.AddChain(&nftables.Chain{Table: k, Name: "services"})
	require.NoError(t, tx.Commit())
	s := newService("web", 1)
	w.set(rules, s, newSlices(s, newEndpoint("10.244.0.1", "fd00::1")))
	fresh := &world{T: t, node: namespace(t)}
	again := fresh.rules()
	fresh.set(again, s, newSlices(s, newEndpoint("10.244.0.1", "fd00::1")))
	require.Equal(t, kernelState(t, fresh.node), kernelState(t, w.node))
}

func TestRuleset_LimitsObjectsOfAnySize(t *testing.T) {
	t.Parallel()
	w := &world{T: t, node: namespace(t)}
	rules := w.rules()
	s := newService(strings.Repeat("n", 255), 1, exposed, sticky(100))
	for i := range 3 * maxAddresses {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs,
			netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}).String())
	}
	s.Spec.Ports = nil
	for i := range 100 {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint(strings.Repeat("p", 250), i),
			Protocol: corev1.ProtocolTCP, Port: int32(i + 1), NodePort: int32(30000 + i)})
	}
	for i := range 5000 {
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges,
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i)}), 24+i%8).String())
	}
	var ends []discoveryv1.Endpoint
	for i := range 1000 {
		ends = append(ends, newEndpoint(fmt.Sprintf("10.244.%d.%d", i>>8, i&255), fmt.Sprintf("fd00::%x", i)))
	}
	w.set(rules, s, newSlices(s, ends[:100]...))
	s.Spec.Ports, s.Spec.LoadBalancerSourceRanges = s.Spec.Ports[:1], nil
	w.set(rules, s, newSlices(s, ends...))
	w.set(rules, s, nil)
	rules.update(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, nil, nil)
	w.commit(rules)
	fresh := &world{T: t, node: namespace(t)}
	fresh.commit(fresh.rules())
	require.Equal(t, kernelState(t, fresh.node), kernelState(t, w.node), "no trace of it is left")
}
