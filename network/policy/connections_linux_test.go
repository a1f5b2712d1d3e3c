package policy

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// enforcer returns an enforcer for a fleet, without informers.
func (f *fleet) enforcer() *Enforcer {
	o := Options{Namespace: f.router, Nodes: f.Nodes, Log: slog.New(slog.DiscardHandler),
		NodeAddresses: func() []netip.Addr { return f.NodeAddresses }}
	require.NoError(f, o.complete())
	e := newEnforcer(f.kernel, o)
	for _, n := range f.Namespaces {
		e.setNamespace(n)
	}
	for _, p := range f.Pods {
		e.setPod(p)
	}
	require.NoError(f, e.sync(true))
	return e
}

// open opens a connection and checks that it works.
func (f *fleet) open(network string, from, to netip.Addr, port uint16) net.Conn {
	f.Helper()
	conn, err := f.connect(network, from, netip.AddrPortFrom(to, port), limit)
	require.NoError(f, err)
	f.Cleanup(func() { _ = conn.Close() })
	require.True(f, echoes(conn, limit))
	return conn
}

func TestEnforcer_EndsConnectionsThatPoliciesNoLongerAllow(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	e := f.enforcer()
	const patience = 300 * time.Millisecond
	front, back := f.open("tcp", f.front, f.web, 80), f.open("tcp", f.back, f.web, 80)
	front6, udp := f.open("tcp", f.front6, f.web6, 80), f.open("udp", f.back, f.web, 81)
	other, own := f.open("tcp", f.other, f.web, 80), f.open("tcp", f.web, f.other, 80)
	machine := f.open("tcp", routerV4, f.web, 80)
	for _, p := range policies(t, `{spec: {podSelector: {matchLabels: {app: web}},
		ingress: [{from: [{podSelector: {matchLabels: {app: front}}}]}]}}`) {
		e.setPolicy(p)
	}
	require.NoError(t, e.sync(false))
	for name, conn := range map[string]net.Conn{"front": front, "front6": front6, "own": own, "machine": machine} {
		require.True(t, echoes(conn, limit), "%s is still allowed and continues", name)
	}
	for name, conn := range map[string]net.Conn{"back": back, "udp": udp, "other": other} {
		require.False(t, echoes(conn, patience), "%s was allowed", name)
	}

	e.notBefore = time.Time{}
	renamed := podAt("default", "front", f.front, f.front6)
	renamed.Labels = map[string]string{"app": "else"}
	e.setPod(renamed)
	require.NoError(t, e.sync(false))
	require.False(t, echoes(front, patience), "the client's pod has other labels")
	require.False(t, echoes(front6, patience), "the client's pod has other labels")
	require.True(t, echoes(own, limit))
}

func TestEnforcer_PreventsServersFromResumingEndedConnections(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	e := f.enforcer()
	listener := make(chan net.Conn, 1)
	f.in(f.namespaceOf(f.web), func() error {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(f.web, 99)))
		if err != nil {
			return err
		}
		f.Cleanup(func() { _ = l.Close() })
		go func() {
			if conn, err := l.Accept(); err == nil {
				listener <- conn
			}
		}()
		return nil
	})
	client, err := f.connect("tcp", f.back, netip.AddrPortFrom(f.web, 99), limit)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	server := <-listener
	t.Cleanup(func() { _ = server.Close() })
	for _, p := range policies(t, `{spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}}`) {
		e.setPolicy(p)
	}
	require.NoError(t, e.sync(false))
	_, err = server.Write([]byte("from the other end, which may send"))
	require.NoError(t, err)
	_, err = client.Write([]byte("what the policy denies"))
	require.NoError(t, err)
	_ = server.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	n, err := server.Read(make([]byte, 100))
	require.Error(t, err)
	require.Zero(t, n)
}

func TestEnforcer_EndsConnectionsBeyondTheLimitOfChecks(t *testing.T) {
	t.Parallel()
	e, _ := newTestEnforcer(t, 3)
	denied := e.denier()
	f := Flow{Source: testAddress(1), Destination: testAddress(0), Protocol: "TCP", Port: 1000}
	other := Flow{Source: testAddress(1), Destination: testAddress(2), Protocol: "TCP", Port: 1002}
	require.False(t, denied(f))
	for range maxSteps {
		if denied(f) {
			break
		}
	}
	require.True(t, denied(f), "exceeds the limit")
	require.False(t, denied(other), "other pods have their own limit")
}

func TestCompiler_PrefersPodsOfThisMachineAsOwnersOfAnAddress(t *testing.T) {
	t.Parallel()
	compiled := newCompiler([]string{"here"})
	compiled.setPod(podAt("default", "web", testAddress(0)))
	for _, p := range policies(t, `{spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}}`) {
		compiled.setPolicy(p)
	}
	liar := podAt("default", "liar", testAddress(0))
	liar.Node, liar.Created = "elsewhere", time.Now()
	compiled.setPod(liar)
	compiled.settle()
	require.False(t, compiled.allows(Flow{Source: testAddress(1), Destination: testAddress(0), Protocol: "TCP", Port: 80}),
		"another machine's Node may claim it, but not open it")
}
